"""Sampling in a model's generation_config.json holds where a request says nothing, and nowhere else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from agent_desk import agent_desk
from chat_templates import DEMO
from pydantic import ValidationError
from queue_client import Queue
from waiting import STALL_S, eventually
from worker_process import WorkerProcess

from octavo import Client
from octavo.queue import wire
from octavo.terms.messages import JobStatus
from octavo.terms.models import JobRequest
from octavo.terms.sampling import NEUTRAL, SamplingDefaults, SamplingParams
from octavo_worker.agent.digest import served_digest
from octavo_worker.agent.sampling import resolve_sampling, sampling_defaults
from octavo_worker.contract.messages import EngineSampling

MODELS = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}


@pytest.fixture
def folder_with(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "model", **config: object) -> Path:
        folder = Path(shutil.copytree(DEMO, tmp_path / name, dirs_exist_ok=True))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, **config}))
        return folder

    return write


def resolved(defaults: SamplingDefaults | None = None, **fields: Any) -> EngineSampling:
    return resolve_sampling(SamplingParams(**fields), seed=1, eos_token_ids=[2], max_model_len=99, defaults=defaults)


def of(sampling: EngineSampling) -> dict[str, float]:
    return {name: getattr(sampling, name) for name in NEUTRAL}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        (MODELS, MODELS),
        ({"do_sample": True, "temperature": 0.7}, {"temperature": 0.7}),
        ({"do_sample": False, "temperature": 0.7, "top_k": 5}, {"temperature": 0.0, "top_k": 5}),
        ({"do_sample": None, "top_k": None, "temperature": None}, {}),
        ({"temperature": 1.0, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}, {}),
        ({"top_k": -1}, {}),
        ({"temperature": 1}, {}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"length_penalty": 2.0, "max_new_tokens": 5, "presence_penalty": 1.0}, {}),
    ],
)
def test_the_file_says_what_holds(folder_with: Callable[..., Path], config: dict[str, Any], expected: Any) -> None:
    assert sampling_defaults(folder_with(**config)).given() == expected


@pytest.mark.parametrize(
    "config",
    [
        {"temperature": 9.0},
        {"temperature": float("nan")},
        {"top_k": True},
        {"temperature": "hot"},
        {"temperature": [0.6]},
        {"top_k": 2.5},
        {"top_k": -2},
        {"top_p": 0.0},
        {"repetition_penalty": -1},
    ],
)
def test_what_is_no_value_is_left_out_and_told(
    folder_with: Callable[..., Path], caplog: pytest.LogCaptureFixture, config: dict[str, Any]
) -> None:
    (name,) = config
    assert sampling_defaults(folder_with(min_p=0.1, **config)).given() == {"min_p": 0.1}
    assert name in caplog.text
    assert "left out" in caplog.text


def test_a_folder_without_the_file_has_no_defaults(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path).given() == {}


def test_the_request_goes_before_the_model_and_the_model_before_octavo() -> None:
    assert of(resolved()) == NEUTRAL
    assert of(resolved(SamplingDefaults(**MODELS))) == MODELS
    for name, neutral in NEUTRAL.items():
        assert of(resolved(SamplingDefaults(**MODELS), **{name: neutral})) == MODELS | {name: neutral}


def test_a_beam_search_takes_no_filters_of_its_model() -> None:
    search = resolved(SamplingDefaults(**MODELS), beam_width=3)
    assert of(search) == NEUTRAL | {"temperature": 0.0, "repetition_penalty": 1.1}
    SamplingParams(beam_width=3, temperature=1.0, top_p=1.0)
    with pytest.raises(ValidationError, match="takes no top_p"):
        SamplingParams(beam_width=3, top_p=0.9)


def test_a_value_that_was_said_survives_the_wire_even_if_it_changes_nothing() -> None:
    said = JobRequest(model="m", prompt="a", sampling=SamplingParams(**NEUTRAL))
    assert wire.decode_request(wire.encode_request(said)) == said
    silent = JobRequest(model="m", prompt="a")
    assert of_wire(silent) == {}
    assert of_wire(said) == NEUTRAL
    assert wire.decode_request(wire.encode_request(silent)).sampling.temperature is None


def of_wire(request: JobRequest) -> dict[str, Any]:
    return dict(msgpack.unpackb(wire.encode_request(request))[2].get("sampling", {}))


def test_defaults_of_a_later_version_are_read_without_what_is_new() -> None:
    later = msgpack.packb([1, "traits", {"sampling": {"temperature": 0.5, "typical_p": 0.2}, "colour": "red"}])
    assert wire.decode_traits(later).sampling == SamplingDefaults(temperature=0.5)


def test_workers_with_other_defaults_are_not_equal() -> None:
    def digest(**config: float) -> str:
        return served_digest(b"x", "amx", sampling=str(SamplingDefaults(**config)))

    assert digest() == served_digest(b"x", "amx"), "as workers of before announce it"
    assert len({digest(), digest(top_k=5), digest(top_k=6), digest(min_p=0.5)}) == 4


async def test_the_engine_is_told_what_holds(redis_url: str) -> None:
    async with agent_desk(redis_url) as desk:
        desk.agent.defaults = SamplingDefaults(temperature=0.6, top_k=20)
        _, silent = await desk.start()
        _, said = await desk.start(temperature=1.0, top_k=0)
    assert (silent.sampling.temperature, silent.sampling.top_k) == (0.6, 20)
    assert (said.sampling.temperature, said.sampling.top_k) == (1.0, 0)


def test_a_worker_tells_its_defaults_and_can_leave_them(
    queue: Queue, start_worker: Callable[..., WorkerProcess], folder_with: Callable[..., Path], redis_url: str
) -> None:
    folder = folder_with(temperature=0.6, top_k=20)
    slow = start_worker("step_seconds=0.5", model=folder, served_name="demo", grace=0).wait_ready()
    eventually(lambda: "sampling by default temperature 0.6, top_k 20" in slow.log)
    with Client(redis_url) as client:
        assert client.models()[0].sampling == SamplingDefaults(temperature=0.6, top_k=20)
    job = queue.submit((7, 8, 9), sampling={"max_tokens": 40, "ignore_eos": True})
    eventually(lambda: queue.stored(job) > 3)
    plain = start_worker(model=folder, served_name="demo", generation_config="none").wait_ready()
    assert "sampling by default" not in plain.log
    slow.process.terminate()
    slow.process.wait(STALL_S)
    stored = queue.stored(job)
    queue.wait(queue.submit((1, 2), sampling={"max_tokens": 5, "ignore_eos": True}))
    assert (queue.status(job), queue.stored(job)) == (JobStatus.QUEUED, stored)
    start_worker(model=folder, served_name="demo").wait_ready()
    assert len(queue.wait(job).token_ids) == 40


def test_a_model_that_is_greedy_by_itself_says_the_same_with_any_seed(
    redis_url: str, folder_with: Callable[..., Path], tmp_path: Path
) -> None:
    flags = {"device": "cpu", "threads": 1, "num_blocks": 64, "served_name": "m"}
    folder = folder_with(do_sample=False)
    with WorkerProcess(redis_url, tmp_path / "log", model=folder, **flags).wait_ready(), Client(redis_url) as client:

        def texts(**sampling: Any) -> set[str]:
            jobs = [client.submit("ROMEO:\n", model="m", max_tokens=12, seed=seed, **sampling) for seed in range(3)]
            return {job.result(timeout=STALL_S).text for job in jobs}

        assert len(texts()) == 1
        assert len(texts(temperature=1.0)) == 3
