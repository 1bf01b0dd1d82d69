"""A whole worker with a draft model: it says what another says without, and is its equal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from queue_client import Queue
from waiting import eventually
from worker_process import KNOWN_SPEEDS, WorkerProcess

from octavo.terms.models import Result
from octavo_worker.contract.files import model_folder

SMALL = {"model": "demo", "device": "cpu", "threads": 1, "num_blocks": 64, "engine": KNOWN_SPEEDS}


def ask(queue: Queue) -> list[Result]:
    """One after the other: a model of this size is seldom worth a draft in a batch."""
    return [
        queue.wait(
            queue.submit(
                f"KING RICHARD {seed}:\n",
                seed=seed,
                sampling={"max_tokens": 80, "temperature": seed / 2, "ignore_eos": True},
            )
        )
        for seed in range(3)
    ]


@pytest.mark.full
def test_a_worker_with_a_draft_says_the_same_and_is_an_equal(queue: Queue, redis_url: str, tmp_path: Path) -> None:
    with WorkerProcess(redis_url, tmp_path / "plain", **SMALL) as plain:
        digest = plain.wait_ready().info().digest
        without = ask(queue)
    with WorkerProcess(redis_url, tmp_path / "drafting", speculate="draft:demo-draft", **SMALL) as drafting:
        assert drafting.wait_ready().info().digest == digest
        drafted = ask(queue)
        eventually(lambda: drafting.info().stats.accepted_tokens > 0)
    for one, other in zip(drafted, without, strict=True):
        assert [said.token_ids for said in one.sequences] == [said.token_ids for said in other.sequences]
        assert one.usage.drafted_tokens >= one.usage.accepted_tokens
        assert other.usage.drafted_tokens == 0
    assert sum(one.usage.accepted_tokens for one in drafted) > 20


def test_a_draft_that_cannot_guess_ends_the_worker_with_the_reason(redis_url: str, tmp_path: Path) -> None:
    draft = tmp_path / "other"
    shutil.copytree(model_folder("demo"), draft)
    (draft / "tokenizer.json").unlink()
    reasons = {
        f"draft:{draft}": "other cannot guess for demo",
        f"draft:{tmp_path}/none": "no folder",
        f"eagle:{draft}": "this is a whole model, not a head; give it as draft:FOLDER",
    }
    for speculate, reason in reasons.items():
        with WorkerProcess(redis_url, tmp_path / "log", speculate=speculate, **SMALL) as worker:
            eventually(lambda reason=reason, worker=worker: reason in worker.log)
