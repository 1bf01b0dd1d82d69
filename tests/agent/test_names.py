"""Workers that serve a model under several names."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from queue_client import MODEL, expected
from waiting import STALL_S, eventually
from worker_process import WorkerProcess

from octavo import Client
from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.queue.protocol import Cell
from octavo.terms.errors import NameTaken, UnknownModel
from octavo.terms.workers import ModelCard, WorkerInfo
from octavo_worker.agent.failures import WorkerFailed
from octavo_worker.agent.supervisor import MOST_NAMES, _public_names
from octavo_worker.assembly.settings import WorkerSettings

StartWorker = Callable[..., WorkerProcess]


def names(served: str | None, model: str = "demo") -> list[str]:
    options = WorkerSettings(served_name=served, model=model, redis_url="redis://localhost").options()
    return list(_public_names(options))


def test_names_are_written_behind_commas() -> None:
    assert names(None) == ["demo"]
    assert names("a") == ["a"]
    with pytest.raises(WorkerFailed, match="called 'a,b'"):
        names(None, "org/a,b")
    assert names("a,b/c:7b, d ,a") == ["a", "b/c:7b", "d"]
    for wrong in ("a,,b", "a,b c", ",", "a,"):
        with pytest.raises(WorkerFailed, match="--served-name"):
            names(wrong)
    assert len(names(",".join(map(str, range(MOST_NAMES))))) == MOST_NAMES
    with pytest.raises(WorkerFailed, match=f"{MOST_NAMES} are allowed"):
        names(",".join(map(str, range(MOST_NAMES + 1))))


@pytest.mark.full
def test_a_worker_answers_to_all_of_its_names_while_it_lives(redis_url: str, start_worker: StartWorker) -> None:
    worker = start_worker(served_name=f"{MODEL},gpt-4o,openai/gpt-4o", lease=0.5, grace=0).wait_ready()
    with Client(redis_url) as client:

        def answer(name: str) -> list[int]:
            job = client.submit((7, 8), model=name, max_tokens=5, seed=1, ignore_eos=True)
            return list(job.result(timeout=STALL_S).token_ids)

        for name in (MODEL, "gpt-4o", "openai/gpt-4o"):
            assert answer(name) == expected([7, 8], 5)
        (card,) = client.models()
        assert card.names == (MODEL, "gpt-4o", "openai/gpt-4o")
        second = start_worker(served_name=f"{MODEL},other").wait_ready()
        assert client.models()[0].names == (MODEL, "gpt-4o", "openai/gpt-4o", "other")
        worker.process.terminate()
        worker.process.wait(STALL_S)
        assert client.models()[0].names == (MODEL, "other")
        with pytest.raises(UnknownModel, match="known models: demo, other"):
            client.submit("a", model="gpt-4o")
        assert answer("other") == expected([7, 8], 5)
        second.send(signal.SIGKILL)
        eventually(lambda: client.models()[0].names == (MODEL,))


def test_the_second_model_with_a_name_is_told_whose_it_is(redis_url: str, start_worker: StartWorker) -> None:
    first = start_worker(served_name="one,gpt-4o").wait_ready()
    second = start_worker(served_name="two,gpt-4o")
    assert second.wait() != 0
    assert "'gpt-4o' is a name of the model 'one'" in second.log
    assert start_worker(served_name="gpt-4o").wait() != 0
    with Client(redis_url) as client:
        assert [card.name for card in client.models()] == ["one"]
    assert first.process.poll() is None


def test_a_server_without_its_data_is_told_the_names_again(
    redis_url: str, redis_sync: Any, start_worker: StartWorker
) -> None:
    start_worker(served_name="one,gpt-4o").wait_ready()
    redis_sync.flushdb()
    with Client(redis_url) as client:

        def is_back() -> bool:
            with suppress(UnknownModel):
                return bool(client.submit((1, 2), model="gpt-4o", max_tokens=2).result(timeout=STALL_S).token_ids)
            return False

        eventually(is_back)


def test_a_worker_whose_name_went_to_another_says_so_and_serves_on(
    redis_url: str, redis_sync: Any, start_worker: StartWorker
) -> None:
    worker = start_worker(served_name="one,gpt-4o").wait_ready()
    info = wire.encode_worker(WorkerInfo(id="w2", model="two", host="h", pid=1, started_at=1.0))
    card = ModelCard(
        name="two", max_model_len=9, vocab_size=9, has_tokenizer=False, created_at=1.0, aliases=("gpt-4o",)
    )
    call = Cell().register_model(card, worker_id="w2", lease_ms=60_000, info=info)

    def takes_it() -> bool:
        """The worker looks after its names once a second, and may be quicker."""
        redis_sync.delete(Cell().keys.aliases)
        with suppress(NameTaken):
            run_sync(redis_sync, call)
            return True
        return False

    eventually(takes_it)
    eventually(lambda: "'gpt-4o' is a name of the model 'two'" in worker.log)
    with Client(redis_url) as client:
        assert client.submit((1, 2), model="one", max_tokens=2).result(timeout=STALL_S).token_ids
