"""Logits that are no numbers end a request with an error where they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.messages import BeamOptions
from octavo_worker.model import load_runner

from .drive import Engine, request
from .zoo import build


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    "asking",
    [{"n": 2, "beam": BeamOptions(2, 1.0, False)}, {"n": 3, "logprobs": 0}, {"prompt_logprobs": 0}],
    ids=["beams", "logprobs", "prompt"],
)
def test_what_shows_them_ends_with_an_error(tmp_path: Path, asking: dict[str, Any]) -> None:
    model = build("llama").half()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1e4)  # activations leave float16
    model.save_pretrained(tmp_path)
    engine = Engine(load_runner(ModelOptions(model=str(tmp_path), device="cpu", num_blocks=65, threads=1)))
    engine.scheduler.add(request("a", [5, 6, 7, 8], max_tokens=20, **asking))
    pipeline = Pipeline(engine, engine.scheduler)  # type: ignore[arg-type]
    while pipeline.advance():
        pass
    output = engine.scheduler.take_output()
    (failed,) = output.failed
    assert failed.code == "invalid_logits"
    assert "float32" in failed.message
    assert not output.tokens
    assert not engine.scheduler.has_requests
    engine.scheduler.check_integrity()
