"""Inspection without weights agrees with a worker's loading, down to the words of a refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, PhiConfig

from octavo_worker.assembly import inspection
from octavo_worker.assembly.inspection import Inspection, inspect
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model import ModelError

DATA = Path(__file__).parent / "data" / "quantised"
CHECKPOINTS = sorted(path.parent.name for path in DATA.glob("*/config.json"))


def options(folder: Path | str, **more: object) -> ModelOptions:
    return ModelOptions(model=str(folder), device="cpu", threads=1, num_blocks=9, **more)  # type: ignore[arg-type]


def forms(found: Inspection) -> dict[str, str]:
    assert found.products is not None
    return {product.name: product.form for product in found.products}


def test_a_dense_model() -> None:
    found = inspect(options("demo"))
    assert found.products is not None
    assert forms(found) == dict.fromkeys(("qkv", "out", "gate, up", "down", "head"), "bfloat16")
    assert [product.layers for product in found.products] == [8, 8, 8, 8, 1]
    matrices = [t for t in load_file(model_folder("demo") / "model.safetensors").values() if t.dim() == 2]
    assert found.nbytes == sum(matrix.nbytes for matrix in matrices)  # the head has the embedding's table
    assert not any(product.dequantises for product in found.products)
    assert (found.quantization, found.read_rate) == ("", None)  # caches may hold it


def test_four_bits_of_a_model_in_sixteen() -> None:
    found = inspect(options("demo", quantization="int4"))
    assert forms(found)["down"] == "int4, groups of 128, zero points"
    assert forms(found)["head"] == "bfloat16"
    assert found.products is not None
    sizes = {product.name: product.nbytes for product in found.products}
    assert sizes["down"] == 8 * 256 * (512 // 2 + 512 // 128 * 5)  # codes, and for a group a scale and a zero point


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_quantised_checkpoint_is_called_what_a_worker_calls_it(name: str) -> None:
    found = inspect(options(DATA / name))
    assert found.quantization
    assert found.quantization == load_runner(options(DATA / name)).quantization


def test_parts_that_differ_are_named_apart() -> None:
    assert forms(inspect(options(DATA / "ct-ignored")))["qkv"] == "int4, groups of 128; bfloat16"
    assert forms(inspect(options(DATA / "ct-fp8-block")))["down"] == (
        "fp8 (e4m3), groups of 128, activations fp8 in groups of 128"
    )


def test_large_weights_are_bounded_by_what_memory_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "CACHED", 1 << 20)
    found = inspect(options("demo"))
    assert found.nbytes
    assert found.read_rate
    assert found.read_rate > 1e8
    assert found.most_tokens_per_s == pytest.approx(found.read_rate / found.nbytes)


@pytest.mark.parametrize("damage", ["missing", "surplus", "shape", "type", "truncated", "method", "no weights"])
def test_a_refusal_has_the_words_of_the_worker(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(DATA / "ct-w4a16", folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("mlp.down_proj.weight_scale"))
    match damage:
        case "missing":
            del tensors[name]
        case "surplus":
            tensors["model.layers.0.mlp.other.weight"] = torch.zeros(3)
        case "shape":
            tensors[name] = tensors[name][1:].clone()
        case "type":
            tensors[name] = tensors[name].to(torch.int32)
    save_file(tensors, file)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-5])
    if damage == "no weights":
        file.unlink()
    if damage == "method":
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["quant_method"] = "aqlm"
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as loaded:
        load_runner(options(folder))
    with pytest.raises(ModelError) as inspected:
        inspect(options(folder))
    assert str(inspected.value) == str(loaded.value)


def test_other_routes(tmp_path: Path) -> None:
    small = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    PhiConfig(**small, intermediate_size=40).save_pretrained(tmp_path)
    assert inspect(options(tmp_path, load_format="dummy")).products is None
    with pytest.raises(ModelError, match=r"holds no \.safetensors weights"):
        inspect(options(tmp_path))
    with pytest.raises(ModelError, match="own decoder, not 'phi'"):
        inspect(options(tmp_path, quantization="int8"))


def test_products_of_an_mlp_without_a_gate(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(tmp_path)
    assert list(forms(inspect(options(tmp_path)))) == ["qkv", "out", "up", "down", "head"]
