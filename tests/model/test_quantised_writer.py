"""Checkpoints that tests quantise themselves look like those of the tools and mean what the reference reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from quantised_base import CONFIG, RAGGED, weights
from quantised_reference import dense, is_quantised, modules
from quantised_writer import CONVERTERS, STORED, round_to_nearest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

DEMO = Path(__file__).parents[2] / "worker" / "octavo_worker" / "bundled" / "demo"
ERROR = {"4": 0.16, "8": 0.012, "fp8": 0.03, "fp4": 0.13}
"""Error of a matrix of the tiny Llama, relative to its norm."""
DIVERGENCE = {"4": 0.01, "8": 0.001, "fp8": 0.001, "fp4": 0.01}
"""Mean Kullback-Leibler divergence in nats a token, of the demo model's predictions."""


def kind(form: str) -> str:
    if "fp" in form:
        return "fp4" if "fp4" in form else "fp8"
    return "8" if "8" in form.partition("a16")[0] else "4"


@pytest.mark.parametrize("form", CONVERTERS)
def test_written_tensors_are_of_the_names_types_and_shapes_of_the_tools_and_near_the_original(
    form: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    before = weights(RAGGED if form == "ct-fp8-block" else CONFIG)
    save_file(before, source / "model.safetensors")
    (source / "config.json").write_text("{}")
    round_to_nearest(source, form, target)
    written, stored = load_file(target / "model.safetensors"), load_file(STORED / form / "model.safetensors")
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in written.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in stored.items()
    }
    after = dense(target)
    for module in (module for module, tensors in modules(target).items() if is_quantised(tensors)):
        wanted = before[f"{module}.weight"].float()
        assert (after[f"{module}.weight"] - wanted).norm() < ERROR[kind(form)] * wanted.norm(), module


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    """Text of the demo model by itself."""
    torch.manual_seed(3)
    start = torch.tensor([[json.loads((DEMO / "config.json").read_text())["bos_token_id"]]] * 4)
    return demo().generate(start, do_sample=True, max_new_tokens=96, eos_token_id=None, pad_token_id=0)


def demo() -> AutoModelForCausalLM:
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32, trust_remote_code=False).eval()


@pytest.mark.full(but=1)
@pytest.mark.parametrize("form", CONVERTERS)
def test_the_demo_model_hardly_predicts_otherwise(form: str, ids: torch.Tensor, tmp_path: Path) -> None:
    round_to_nearest(DEMO, form, tmp_path / "quantised")
    model = demo()
    with torch.no_grad():
        before = model(ids).logits.log_softmax(-1)
        missing = model.load_state_dict(dense(tmp_path / "quantised"), strict=False).missing_keys
        after = model(ids).logits.log_softmax(-1)
    divergence = (before.exp() * (before - after)).sum(-1).mean()
    assert set(missing) <= {"lm_head.weight"}
    assert 0 < divergence < DIVERGENCE[kind(form)]
