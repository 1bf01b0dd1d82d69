"""A beam search reports its progress; its stream, its result and all other jobs are as without reports."""

from __future__ import annotations

import os
import signal

import pytest
from engine_driver import expected_beams, make_request
from queue_client import VOCABULARY, Queue
from waiting import eventually

from octavo import Client
from octavo.terms.messages import Progress
from octavo_worker.contract.messages import BeamOptions

PROMPT = (7, 8, 9)


def beams(queue: Queue, max_tokens: int) -> str:
    return queue.submit(PROMPT, sampling={"max_tokens": max_tokens, "ignore_eos": True, "beam_width": 3, "n": 2})


def wanted(max_tokens: int) -> list[list[int]]:
    request = make_request("", PROMPT, max_tokens=max_tokens, n=2, beam=BeamOptions(3))
    return expected_beams(request, vocab_size=VOCABULARY)


def grows(said: list[Progress]) -> bool:
    lengths = [progress.tokens for progress in said]
    return lengths == sorted(lengths) and len(set(lengths)) > 1


def test_a_search_tells_how_far_it_is_and_delivers_at_its_end(queue: Queue, redis_url, start_worker):
    start_worker("step_seconds=0.02")
    job = beams(queue, 60)
    with Client(redis_url) as client:
        events = list(client.events(job))
    said = [event.progress for event in events if event.progress is not None]
    assert grows(said)
    assert all(event.offset == 0 for event in events[: len(said)])
    assert all(progress.score < 0 and progress.text and progress.attempt == 1 for progress in said)
    assert sum(len(event.token_ids) for event in events) == events[-1].offset == 120
    assert [list(sequence.token_ids) for sequence in queue.wait(job).sequences] == wanted(60)


@pytest.mark.full
def test_another_worker_starts_the_search_over_and_says_so(queue: Queue, redis_url, start_worker):
    first = start_worker("step_seconds=0.02").wait_ready()
    job = beams(queue, 100)
    with Client(redis_url) as client:
        said: list[Progress] = []
        for event in client.events(job):
            if event.progress is not None:
                said.append(event.progress)
                if len(said) == 3:
                    os.kill(first.engine_pid, signal.SIGKILL)
    attempts = sorted({progress.attempt for progress in said})
    assert attempts == [1, 2]
    later = [progress for progress in said if progress.attempt == 2]
    assert later[0].tokens < max(progress.tokens for progress in said if progress.attempt == 1) or grows(later)
    assert [list(sequence.token_ids) for sequence in queue.wait(job).sequences] == wanted(100)


def test_a_later_reader_hears_the_latest_and_other_jobs_hear_nothing(queue: Queue, redis_url, start_worker):
    start_worker("step_seconds=0.02")
    job = beams(queue, 100)
    other = queue.submit((1, 2), sampling={"max_tokens": 40, "ignore_eos": True})
    with Client(redis_url) as client:
        eventually(lambda: (told := client.info(job).progress) is not None and told.tokens > 5)
        assert next(client.events(job)).progress.tokens > 5
        assert all(event.progress is None for event in client.events(other))
        client.cancel(job)
        assert client.result(job).status == "cancelled"
        assert client.info(job).progress is None
