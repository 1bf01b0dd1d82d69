"""The reference that judges the loader of quantised checkpoints agrees with the tools that wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from quantised_base import CONFIG, RAGGED, weights
from quantised_reference import Parts, dense, is_quantised, modules, parts, read
from safetensors.torch import load_file
from torch import Tensor

DATA = Path(__file__).parent / "data" / "quantised"
FORMS = sorted(path.parent.name for path in DATA.glob("*/config.json"))
WITH_ROWS = sorted(path.stem for path in (DATA / "expected").glob("*.safetensors"))
LAYER = "model.layers.0"
PROJECTIONS = {
    *(f"{LAYER}.self_attn.{name}_proj" for name in "qkvo"),
    *(f"{LAYER}.mlp.{name}_proj" for name in ("gate", "up", "down")),
}
LEFT_OUT = {"ct-ignored": {f"{LAYER}.self_attn.v_proj"}, "gptq-dynamic": {f"{LAYER}.self_attn.v_proj"}}
ERROR = {"int4": 0.2, "int8": 0.02, "e4m3": 0.03, "e2m1": 0.13}
"""Largest error of a matrix, relative to its norm."""
ERROR_OF_GPTQ_IN_EIGHT_BITS = 0.08
"""GPTQ moves weights further than rounding does, to make up for the rounding of others."""


def original(name: str) -> dict[str, Tensor]:
    return weights(RAGGED if name == "ct-fp8-block" else CONFIG)


def precision(part: Parts) -> str:
    return part.kind if part.zeros is None else "int4" if part.codes.min() >= 0 and part.codes.max() < 16 else "int8"


def unscaled(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The part that AWQ leaves as it was: it moves factors between a norm or a row and the columns that read it."""
    state = {name: tensor.float() for name, tensor in state.items()}
    for norm, readers in (
        ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ):
        for reader in readers:
            state[f"{LAYER}.{reader}.weight"] *= state[f"{LAYER}.{norm}.weight"]
    for name, dimension in (("up", 1), ("down", 0)):
        matrix = state[f"{LAYER}.mlp.{name}_proj.weight"]
        matrix /= matrix.norm(dim=dimension, keepdim=True)
    return state


@pytest.mark.parametrize("name", WITH_ROWS)
def test_weights_are_those_of_the_tool_that_wrote_the_checkpoint(name: str) -> None:
    expected, ours = load_file(DATA / "expected" / f"{name}.safetensors"), dense(DATA / name)
    assert {key.removesuffix(".weight") for key in expected} == PROJECTIONS - LEFT_OUT.get(name, set())
    for key, rows in expected.items():
        assert torch.equal(torch.cat((ours[key][:2], ours[key][-2:])).to(rows.dtype), rows), key


def test_every_checkpoint_has_an_answer_of_another_tool_or_numbers_of_one_that_has() -> None:
    same_numbers = {"fp8-tensor-dynamic", "fp8-tensor-static"}
    assert set(FORMS) == {*WITH_ROWS, *same_numbers}
    wanted = dense(DATA / "fp8-tensor-static-inv")
    for name in same_numbers:
        state = dense(DATA / name)
        assert state.keys() == wanted.keys()
        assert all(torch.equal(state[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize("name", FORMS)
def test_weights_are_near_those_that_were_quantised(name: str) -> None:
    before, after = original(name), dense(DATA / name)
    assert before.keys() == after.keys()
    if name.startswith("awq"):
        before, after = unscaled(before), unscaled(after)
    found = {module for module, tensors in modules(DATA / name).items() if is_quantised(tensors)}
    assert found == PROJECTIONS - LEFT_OUT.get(name, set())
    for key in before:
        module, wanted = key.removesuffix(".weight"), before[key].float()
        if module in found:
            bound = ERROR[precision(parts(DATA / name, module))]
            if name.startswith("gptq"):
                bound = max(bound, ERROR_OF_GPTQ_IN_EIGHT_BITS)
            assert (after[key] - wanted).norm() < bound * wanted.norm(), key
        elif not name.startswith("awq"):
            assert torch.equal(after[key], wanted), key


@pytest.mark.parametrize(
    ("name", "steps"),
    [("ct-w4a16", 0.6), ("ct-w4a16-asym", 0.6), ("ct-ignored", 0.6), ("ct-w8a16", 0.8), ("ct-w8a8", 0.8)],
)
def test_integers_rounded_to_the_nearest_are_within_half_a_step(name: str, steps: float) -> None:
    """And what the tool's division in bfloat16 is off by: a quarter of a step in eight bits."""
    before = original(name)
    for module in PROJECTIONS - LEFT_OUT.get(name, set()):
        part = parts(DATA / name, module)
        off = (part.values - before[f"{module}.weight"].float()).abs() / part.scales[:, part.groups]
        assert off.max() < steps, module


def test_both_versions_of_asymmetric_gptq_hold_the_same_numbers() -> None:
    """The first has one less in every zero point, taken from whole words: where one is 0, its neighbour pays for it."""
    least = []
    for module in PROJECTIONS:
        first, second = (parts(DATA / name, module) for name in ("gptq-4-asym", "gptq-4-asym-v2"))
        assert first.zeros is not None
        assert second.zeros is not None
        assert torch.equal(first.codes, second.codes)
        assert torch.equal(first.zeros, second.zeros)
        assert torch.equal(first.scales, second.scales)
        least.append(int(first.zeros.min()))
    assert min(least) == 0


@pytest.mark.parametrize("name", ["gptq-4-desc-act", "ct-w4a16-actorder-group", "ct-w4a16-actorder-group-asym"])
def test_columns_of_a_group_lie_apart_where_activations_order_them(name: str) -> None:
    for module in PROJECTIONS:
        part = parts(DATA / name, module)
        assert not torch.equal(part.groups, part.groups.sort().values)
        assert torch.equal(part.groups[part.order], torch.arange(len(part.groups)) // 32)


def test_bits_and_groups_of_a_module_may_be_its_own() -> None:
    found = modules(DATA / "gptq-dynamic")
    down = read(found[f"{LAYER}.mlp.down_proj"], {"quant_method": "gptq"})
    gate = read(found[f"{LAYER}.mlp.gate_proj"], {"quant_method": "gptq"})
    assert (precision(down), down.scales.shape[1]) == ("int8", CONFIG["intermediate_size"] // 64)
    assert (precision(gate), gate.scales.shape[1]) == ("int4", CONFIG["hidden_size"] // 128)


@pytest.mark.parametrize("name", ["ct-w8a8-static", "ct-fp8-static", "fp8-tensor-static", "fp8-tensor-static-inv"])
def test_static_schemes_have_a_scale_of_activations(name: str) -> None:
    for module in PROJECTIONS:
        scale = parts(DATA / name, module).activation_scale
        assert scale is not None
        assert scale.numel() == 1
        assert scale > 0


def test_checkpoints_are_small_and_the_readme_names_each() -> None:
    sizes = {path: path.stat().st_size for path in DATA.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert max(sizes.values()) < 1_000_000
    assert sum(sizes.values()) < 6_000_000
    readme = (DATA / "README.md").read_text()
    assert [name for name in FORMS if f"`{name}`" not in readme] == []
