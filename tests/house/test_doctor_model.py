"""`octavo doctor --model`: how a model's weights are stored, computed with, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_configs import tiny
from transformers import BloomConfig
from typer.testing import CliRunner

from octavo.cli.app import build_app

DATA = Path(__file__).parents[1] / "model" / "data" / "quantised"
NO_SERVER = "redis://127.0.0.1:1"  # a finding of its own, and all that this test needs of one


def doctor(*flags: str) -> str:
    result = CliRunner().invoke(build_app(), ["doctor", "--redis-url", NO_SERVER, *flags])
    assert result.exit_code == 1, result.output
    return result.stdout


def diagnose(*flags: str) -> tuple[dict[str, str], dict[str, Any] | None]:
    """The finding about the weights, and all that is known of them."""
    found = json.loads(doctor("--json", *flags))
    (finding,) = (finding for finding in found["findings"] if finding["name"] == "weights")
    return finding, found.get("weights")


def test_without_a_model_weights_are_not_looked_at() -> None:
    found = json.loads(doctor("--json"))
    assert "weights" not in found
    assert "weights" not in {finding["name"] for finding in found["findings"]}


def test_a_dense_model() -> None:
    finding, weights = diagnose("--model", "demo")
    assert finding["state"] == "ok"
    assert finding["found"].startswith("10.5 MB a token, on ")
    assert weights is not None
    assert [product["layers"] for product in weights["products"]] == [8, 8, 8, 8, 1]


def test_a_quantised_model() -> None:
    _, weights = diagnose("--model", str(DATA / "ct-w4a16"))
    assert weights is not None
    assert weights["quantization"] == "int4 + int4g128"
    assert weights["products"][0]["form"] == "int4, groups of 128"
    shown = doctor("--model", str(DATA / "ct-w4a16"))
    assert "int4, groups of 128" in shown
    assert shown.splitlines()[-5].split()[:2] == ["qkv", "1"]


def test_products_without_a_kernel_for_their_codes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo_kernels.products.naming import Way
    from octavo_worker.assembly import inspection

    for dequantises, state in ((True, "warning"), (False, "ok")):
        monkeypatch.setattr(inspection, "way_of", lambda *_, slow=dequantises, **__: Way("x", slow))
        finding, _ = diagnose("--model", str(DATA / "ct-w4a16"))
        assert finding["state"] == state
        assert ("no kernel here reads the codes of qkv" in finding["found"]) == dequantises


def test_refusals_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding, weights = diagnose("--model", str(DATA / "ct-w4a16"), "--quantization", "int8")
    assert (finding["state"], weights) == ("error", None)
    assert finding["found"].endswith("is quantised already; leave --quantization out.")
    assert diagnose("--model", "demo", "--quantization", "int3")[0]["found"].startswith(
        "OCTAVO_QUANTIZATION or its flag"
    )
    monkeypatch.setenv("OCTAVO_QUANTIZATION", "fp8")
    _, weights = diagnose("--model", "demo")
    assert weights is not None
    assert weights["quantization"] == "fp8 by fp8"


def test_a_model_that_a_worker_refuses_is_not_ok(tmp_path: Path) -> None:
    BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4).save_pretrained(tmp_path)
    finding, weights = diagnose("--model", str(tmp_path))
    assert (finding["state"], weights) == ("error", None)
    assert finding["found"].startswith("BloomForCausalLM called transformers' attention interface for 0 of 1 layers")


def test_weights_of_llama_cpp_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    finding, weights = diagnose("--model", str(tmp_path))
    assert (finding["state"], weights) == ("error", None)
    assert "holds llama.cpp's .gguf weights: give the folder of the safetensors checkpoint" in finding["found"]


def test_a_config_that_seems_to_lack_something_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
    config = tiny("qwen2", rope_parameters=yarn)
    assert config is not None
    config.save_pretrained(tmp_path)
    monkeypatch.setenv("OCTAVO_LOAD_FORMAT", "dummy")
    found = json.loads(doctor("--json", "--model", str(tmp_path)))["findings"]
    (finding,) = (finding for finding in found if finding["name"] == "weights")
    assert (finding["state"], "set max_position_embeddings in config.json to 512" in finding["next_step"]) == (
        "warning",
        True,
    )
