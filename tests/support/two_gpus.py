"""Marks of tests that need two GPUs, which reach each other's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

TWO_GPUS = [
    pytest.mark.gpu,
    pytest.mark.beyond_plain,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def on_two_gpus(test: Callable[..., Any]) -> Callable[..., Any]:
    for mark in TWO_GPUS:
        test = mark(test)
    return test
