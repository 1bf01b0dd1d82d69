"""Logits that are no numbers end a request with an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gpus import devices

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import BeamOptions
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.pipeline import Pipeline

from .drive import Engine, request
from .zoo import build


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    "asking",
    [
        {"n": 2, "beam": BeamOptions(2, 1.0, False)},
        {"n": 3, "logprobs": 0},
        {"prompt_logprobs": 0},
        {"temperature": 0.0},
        {"n": 3, "temperature": 1.0},
        {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.2},
    ],
    ids=["beams", "logprobs", "prompt", "greedy", "samples", "filters"],
)
@pytest.mark.parametrize("device", devices())
def test_a_request_ends_with_an_error(tmp_path: Path, asking: dict[str, Any], device: str) -> None:
    model = build("llama").half()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1e4)  # activations leave float16
    model.save_pretrained(tmp_path)
    engine = Engine(load_runner(ModelOptions(model=str(tmp_path), device=device, num_blocks=65, threads=1)))
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


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_requests_beside_it_go_on(tmp_path: Path, device: str, temperature: float) -> None:
    """One token's embedding is no number. Its blocks go to the next requests."""
    model, bad, prompt = build("llama"), 100, [5, 6, 7, 8]
    with torch.no_grad():
        model.model.embed_tokens.weight[bad] = model.lm_head.weight[bad] = torch.nan
    model.save_pretrained(tmp_path)
    engine = Engine(load_runner(ModelOptions(model=str(tmp_path), device=device, num_blocks=9, threads=1)))
    pipeline = Pipeline(engine, engine.scheduler)  # type: ignore[arg-type]
    for turn in range(4):
        for name, tokens in {"good": [turn, *prompt], "bad": [turn, *prompt, bad] * 4}.items():
            engine.scheduler.add(request(f"{name}{turn}", tokens, max_tokens=20, temperature=temperature))
        while pipeline.advance():
            pass
        output = engine.scheduler.take_output()
        assert [(failed.id, failed.code) for failed in output.failed] == [(f"bad{turn}", "invalid_logits")]
        assert [token.id for token in output.tokens] == [f"good{turn}"] * 20
        assert bad not in {token.token for token in output.tokens}
    engine.scheduler.check_integrity()
