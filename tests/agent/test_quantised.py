"""A whole worker with `--quantization`: what it serves, what it calls it, and what it may not take over."""

from __future__ import annotations

from pathlib import Path

from queue_client import Queue
from waiting import eventually
from worker_process import WorkerProcess

from octavo import Client
from octavo_worker.bench.quality import Loaded
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions

TOKENS = 24


SMALL = {"model": "demo", "device": "cpu", "threads": 1, "num_blocks": 64}


def greedy(prompt: list[int]) -> list[int]:
    options = ModelOptions(model=str(model_folder("demo")), device="cpu", quantization="int4", threads=1)
    model, tokens = Loaded(options, 1, len(prompt) + TOKENS), list(prompt)
    for _ in range(TOKENS):
        tokens.append(int(model.logits([*tokens, 0])[-1].argmax()))
    return tokens[len(prompt) :]


def test_a_worker_serves_what_it_quantised_and_is_no_equal_of_another(
    queue: Queue, redis_url: str, tmp_path: Path
) -> None:
    prompt = [0, 300, 17, 1200, 5]
    with WorkerProcess(redis_url, tmp_path / "quantised", quantization="int4", **SMALL) as quantised:
        quantised.wait_ready()
        job = queue.submit(tuple(prompt), sampling={"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True})
        assert list(queue.wait(job).token_ids) == greedy(prompt)
        with WorkerProcess(redis_url, tmp_path / "dense", **SMALL) as dense:
            infos = [worker.wait_ready().info() for worker in (quantised, dense)]
            eventually(lambda: "do not serve the same" in dense.log)
    four, sixteen = (info for info in infos if info is not None)
    assert four.numerics == f"{sixteen.numerics} weights int4g128"
    assert four.digest != sixteen.digest
    assert "weights in int4g128, " in quantised.log


def test_the_model_card_names_the_scheme(redis_url: str, queue: Queue, tmp_path: Path) -> None:
    flags = SMALL | {"served_name": "small", "quantization": "fp8"}
    with WorkerProcess(redis_url, tmp_path / "log", **flags) as worker, Client(redis_url) as client:
        worker.wait_ready()
        cards = {card.name: card.quantization for card in client.models()}
    assert cards == {"demo": "", "small": "fp8 by fp8"}
