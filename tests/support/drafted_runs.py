"""Runs of the fake model with drafts."""

from __future__ import annotations

from typing import Any

from engine_driver import Driver
from proposers import AnswerBook
from workloads import teach

from octavo_worker.contract.messages import AddRequest


def book(*requests: AddRequest, right: float | None = 1.0, **options: int) -> AnswerBook:
    found = AnswerBook({}, right)
    teach(found, requests, **options)
    return found


def drive(*requests: AddRequest, blocks: int = 60, **options: Any) -> Driver:
    """To the end of all requests."""
    driver = Driver.create(blocks + 1, 4, **options)
    for request in requests:
        driver.add(request)
    driver.run()
    driver.runner.close()
    return driver
