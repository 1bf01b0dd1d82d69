"""Recurrent layers of sizes that the GPU's kernels take, and what holds for them in the emulator as on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

import torch
from recurrent_layers import SLOTS, Layer, Part, conv_layer, delta_layer, moves_of, same, ssm_layer
from torch import Tensor

from octavo_kernels.ops import Convolution, GatedNorm, LayerStates

TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
BLOCK_LAYERS: dict[str, Callable[..., Layer]] = {
    "delta": partial(delta_layer, 1, 2, 128, 128),
    "delta, a key head a head": partial(delta_layer, 2, 2, 128, 128, beta_scale=2.0),
    "delta, wide": partial(delta_layer, 2, 2, 96, 192, beta_scale=2.0),
    "delta, wide, shared keys": partial(delta_layer, 1, 2, 96, 192),
    "ssm": partial(ssm_layer, 2, 4, 128, 64),
    "ssm, whole norm, limits": partial(ssm_layer, 1, 20, 128, 64, norm="whole", dt_limit=(0.3, 1.5)),
    "ssm, norm before": partial(ssm_layer, 1, 4, 128, 128, norm="before"),
    "ssm, no norm": partial(ssm_layer, 2, 4, 128, 64, norm="none"),
    "ssm, 256 rows": partial(ssm_layer, 2, 4, 256, 128, norm="none"),
    "conv": partial(conv_layer, 520),
    "conv, bias": partial(conv_layer, 24, taps=4, bias=True),
}

CHUNKED_SSM: dict[str, Callable[..., Layer]] = {
    "groups": partial(ssm_layer, 2, 8, 128, 64),
    "heads alone, no norm": partial(ssm_layer, 4, 4, 128, 64, norm="none"),
    "256 rows, wide heads": partial(ssm_layer, 2, 4, 256, 128, norm="before"),
}
"""Layers of Mamba2 whose prompts go by chunks: two, one and four parts of heads to a group."""


def moved(value: object, device: str) -> object:
    """Tensors of an operation's arguments, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Convolution):
        return Convolution(*(None if t is None else t.to(device) for t in value))
    if isinstance(value, GatedNorm):
        return replace(value, weight=None if value.weight is None else value.weight.to(device))
    return value


def with_step(layer: Layer, step: Callable[..., Tensor], device: str = "cpu", **more: object) -> Layer:
    """The layer, computed by another operation with the same weights."""
    weights = {name: moved(value, device) for name, value in layer.step.keywords.items()}  # type: ignore[attr-defined]
    return replace(layer, step=partial(step, **weights, **more))


def states_of(layer: Layer, device: str = "cpu", matrix_dtype: torch.dtype = torch.float32) -> LayerStates:
    """Slots that begin at multiples of 16 bytes, without values."""

    def slots(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = torch.Size(shape).numel()
        memory = torch.full((SLOTS * (size + 8) + 8,), float("nan"), dtype=dtype, device=device)
        begin = -memory.data_ptr() % 16 // dtype.itemsize
        return memory[begin : begin + SLOTS * (size + 8)].view(SLOTS, size + 8)[:, :size].unflatten(1, shape)

    return LayerStates(
        None if layer.matrix is None else slots(layer.matrix, matrix_dtype), slots(layer.columns, layer.dtype)
    )


def step(layer: Layer, x: Tensor, states: LayerStates, parts: Iterable[Part]) -> Tensor:
    return layer.step(x, states, moves_of(list(parts), x.device))


def begun(layer: Layer, device: str, slots: Iterable[int]) -> LayerStates:
    """States of which these slots have seen a few tokens, each others."""
    states = states_of(layer, device)
    for slot in slots:
        step(layer, layer.rows(3, seed=slot).to(device), states, [Part(3, write=slot)])
    return states


def assert_reference(layer: Layer, parts: list[Part], device: str = "cpu") -> None:
    """Outputs, matrices and columns are those of the reference, in float64, and no other slot is touched."""
    read = {part.read for part in parts} - {0}
    states = begun(layer, device, read)
    wanted = states_of(layer, matrix_dtype=torch.float64)
    for slot in read:
        wanted.columns[slot] = states.columns[slot].cpu()
        if wanted.matrices is not None and states.matrices is not None:
            wanted.matrices[slot] = states.matrices[slot].cpu().double()
    x = layer.rows(sum(part.rows for part in parts))
    out, reference = step(layer, x.to(device), states, parts), layer.plain(x, wanted, moves_of(parts))
    tolerance = TOLERANCE[layer.dtype]
    torch.testing.assert_close(out.cpu().float(), reference.float(), atol=tolerance, rtol=tolerance)
    assert torch.equal(states.columns.cpu().nan_to_num(7.0), wanted.columns.nan_to_num(7.0))
    if wanted.matrices is not None and states.matrices is not None:
        torch.testing.assert_close(
            states.matrices.cpu().double(), wanted.matrices, atol=3e-5, rtol=1e-4, equal_nan=True
        )


def assert_no_cut_shows(layer: Layer, rows: int, cuts: list[int], device: str = "cpu") -> None:
    """Bits are the same whether tokens come in one step or in several, in place and from one slot to another."""
    x, whole, pieces = layer.rows(rows).to(device), states_of(layer, device), states_of(layer, device)
    expected = step(layer, x, whole, [Part(rows, write=1)])
    outputs, slot = [], 0
    for place, (begin, end) in enumerate(pairwise([0, *cuts, rows])):
        written = 1 if place < 2 else 1 + place % 2
        outputs.append(step(layer, x[begin:end], pieces, [Part(end - begin, slot, written)]))
        slot = written
    assert torch.equal(torch.cat(outputs), expected)
    assert same(pieces, slot, whole, 1)


def assert_keeps_are_shorter_steps(layer: Layer, rows: int, kept: list[int], device: str = "cpu") -> None:
    x, states = layer.rows(rows).to(device), states_of(layer, device)
    keeps = [(n, place + 2) for place, n in enumerate(kept)] + [(rows, 0), (rows + 1, 23)]
    step(layer, x, states, [Part(rows, write=1, keeps=keeps)])
    assert states.columns[23].isnan().all(), "there are not as many rows"
    for n, slot in keeps[: len(kept)]:
        shorter = states_of(layer, device)
        step(layer, x[:n], shorter, [Part(n, write=1)])
        assert same(states, slot, shorter, 1), n


def assert_alone_is_in_a_batch(layer: Layer, lengths: list[int], device: str = "cpu") -> None:
    x = layer.rows(sum(lengths)).to(device)
    slots = range(1, len(lengths) + 1)
    before, after = begun(layer, device, slots), begun(layer, device, slots)
    together = step(layer, x, after, [Part(n, s, s) for s, n in zip(slots, lengths, strict=True)])
    for s, (begin, end) in zip(slots, pairwise([0, *accumulate(lengths)]), strict=True):
        alone = step(layer, x[begin:end], before, [Part(end - begin, s, s)])
        assert torch.equal(alone, together[begin:end])
        assert same(before, s, after, s)


def assert_padding_touches_nothing(layer: Layer, device: str = "cpu") -> None:
    """Padding reads zeros and stores nothing; what is empty hands its state on."""
    states, before = begun(layer, device, (1, 2)), begun(layer, device, (1, 2))
    out = step(layer, layer.rows(4).to(device), states, [Part(0, 2, 3), Part(2, 1, 1), Part(1), Part(1), Part(0)])
    assert not out.isnan().any()
    assert same(states, 2, before, 2)
    assert same(states, 3, before, 2)
    untouched = [slot for slot in range(SLOTS) if slot not in (1, 2, 3)]
    assert states.columns[untouched].isnan().all()
    assert states.matrices is None or states.matrices[untouched].isnan().all()
