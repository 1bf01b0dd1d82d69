"""How far one model is from another: exactly nothing from itself, and what a sum by hand says from another."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from octavo_worker.bench.cli import bench
from octavo_worker.bench.quality import Divergence, Mismatch, windows_of
from octavo_worker.contract.files import model_folder

DEMO = model_folder("demo")


def quality(model: str | Path, *flags: str) -> dict[str, Any]:
    """The figures of a model beside the demo model."""
    small = ("--device", "cpu", "--threads", "1", "--tokens", "512", "--context", "128")
    result = CliRunner().invoke(bench, ["quality", str(model), "--against", "demo", "--json", *small, *flags])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert row["tokens"] == 512
    return dict(row)


def changed(folder: Path, change: float) -> Path:
    """The demo model with one matrix of each layer scaled."""
    shutil.copytree(DEMO, folder)
    tensors = load_file(DEMO / "model.safetensors")
    down = {name: (tensor * change).to(tensor.dtype) for name, tensor in tensors.items() if "down_proj" in name}
    save_file(tensors | down, folder / "model.safetensors")
    return folder


def test_sums_are_those_of_the_definition() -> None:
    ours, theirs = (
        torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]),
        torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]]),
    )
    found = Divergence()
    found.add(ours.log(), theirs.log(), [0, 1])
    first = 0.25 * math.log(0.25 / 0.5) + 0.5 * math.log(0.5 / 0.25)
    assert (found.tokens, found.same_top) == (2, 1)
    assert found.nats == pytest.approx(first, rel=1e-6)
    assert found.to_json() == {
        "tokens": 2,
        "kl_nats": pytest.approx(first / 2, rel=1e-2),
        "same_top": 0.5,
        "perplexity": pytest.approx((0.5 * 0.8) ** -0.5, abs=1e-4),
        "reference_perplexity": pytest.approx((0.25 * 0.8) ** -0.5, abs=1e-4),
    }


def test_what_the_reference_rules_out_adds_nothing() -> None:
    found = Divergence()
    found.add(torch.tensor([[0.0, -torch.inf]]), torch.tensor([[3.0, -torch.inf]]), [0])
    assert (found.nats, found.surprise) == (0.0, 0.0)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_model_is_no_way_from_itself(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ROMEO:\nBut soft, what light through yonder window breaks?\n" * 40)
    for flags in ((), ("--text", str(tmp_path / "text"))):
        row = quality("demo", "--dtype", dtype, *flags)
        assert (row["kl_nats"], row["same_top"]) == (0.0, 1.0)
        assert row["perplexity"] == row["reference_perplexity"] > 1


def test_a_damaged_model_is_seen_where_perplexity_hardly_moves(tmp_path: Path) -> None:
    row = quality(changed(tmp_path / "damaged", 1.1))
    assert row["kl_nats"] > 0.001
    assert row["same_top"] < 0.99
    assert row["perplexity"] == pytest.approx(row["reference_perplexity"], rel=0.02)


def test_a_text_is_read_from_its_beginning_in_windows() -> None:
    windows = windows_of("ROMEO:\n" * 100, [DEMO, DEMO], tokens=100, context=32)
    assert [len(window) for window in windows] == [33] * 3
    whole = windows_of("ROMEO:\n" * 100, [DEMO], tokens=96, context=96)[0]
    assert whole == [windows[0][0], *(token for window in windows for token in window[1:])]


@pytest.mark.full
def test_models_that_cannot_be_compared_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(Mismatch, match="fewer than the 32"):
        windows_of("ROMEO:\n", [DEMO], tokens=32, context=32)
    with pytest.raises(Mismatch, match=r"no tokenizer\.json"):
        windows_of("ROMEO:\n", [tmp_path], tokens=32, context=32)
    shutil.copytree(DEMO, tmp_path / "other")
    config = json.loads((DEMO / "config.json").read_text()) | {"vocab_size": 2040}
    (tmp_path / "other/config.json").write_text(json.dumps(config))
    tensors = load_file(DEMO / "model.safetensors")
    save_file(
        tensors | {name: t[:2040].clone() for name, t in tensors.items() if len(t) == 2048},
        tmp_path / "other/model.safetensors",
    )
    result = CliRunner().invoke(bench, ["quality", str(tmp_path / "other"), "--against", "demo", "--device", "cpu"])
    assert result.exit_code == 1
    assert "vocabularies of 2040 and 2048 tokens" in " ".join(result.output.split())
