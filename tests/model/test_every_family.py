"""Every config class of transformers that has a causal language model: `octavo doctor` and a worker give one answer,
and what they serve answers as transformers does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from quantised_checkpoint import logits
from tiny_configs import KINDS, tiny
from transformers import AutoModelForCausalLM, PreTrainedModel

from octavo_worker.assembly.inspection import inspect
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.errors import ModelError

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def save(kind: str, folder: Path) -> PreTrainedModel | None:
    """A tiny checkpoint of a family; None: its config alone."""
    config = tiny(kind)
    if config is None:
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        return None
    torch.manual_seed(0)
    try:
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception:  # a family that lacks a library, or a value
        config.save_pretrained(folder)
        return None
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2 and not weight.any():  # a router of zeros leaves the choice among equals to chance
                weight.normal_(0, 0.02)
    model.save_pretrained(folder)
    return model.float().eval()


def answer_of(do: Callable[[ModelOptions], Any], folder: Path) -> str:
    options = ModelOptions(model=str(folder), device="cpu", dtype="float32", threads=1, num_blocks=9, max_model_len=64)
    try:
        do(options)
    except ModelError as error:
        return str(error)
    return "ok"


@pytest.mark.full(but=16)
@pytest.mark.parametrize("kind", KINDS)
def test_the_doctor_says_what_a_load_does(kind: str, tmp_path: Path) -> None:
    model = save(kind, tmp_path)
    loaded = answer_of(load_runner, tmp_path)
    assert answer_of(inspect, tmp_path) == loaded
    if loaded != "ok":
        assert loaded.endswith(".")
        assert "\n" not in loaded
        return
    assert model is not None
    with torch.inference_mode():
        wanted = model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
    assert (logits(tmp_path, IDS) - wanted).abs().max() < 1e-3
