"""Operands that recurrent layers have in common: slots of states, moves of a step between them, small weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels import checks
from octavo_kernels.call import check, float_type, rows_of
from octavo_kernels.operands import address, rows_at

MAX_TAPS = 8
"""Taps of a convolution that kernels take."""


class LayerStates(NamedTuple):
    """One layer's share of all slots.

    `matrices[slots, heads, rows, columns]` (float32; None: the layer has no recurrence): `rows` is the width of a key,
    `columns` that of a value. `columns[slots, taps - 1, channels]`: the latest inputs of the convolution, the oldest
    first, in the type of the data. A slot's part of either is contiguous; the distance between slots is free. Slot 0
    is never read or written.
    """

    matrices: Tensor | None
    columns: Tensor


class Moves(NamedTuple):
    """Moves of a step: slots of each of its S sequences (all int32).

    Sequence s has the rows from `query_start[s]` to `query_start[s + 1]`, begins with the state in slot `read[s]` (0:
    zeros), and leaves the state after its last row in slot `write[s]` (0: nowhere). Entries from `keep_start[s]` to
    `keep_start[s + 1]` are its keeps: the state after `keep_after` (ascending, from 1) of its rows goes to `keep_slot`,
    too; one of slot 0, or behind more rows than there are, is not stored. A slot that is written or kept is touched by
    no other sequence; `read` and `write` may be equal, and then the state is advanced in place.
    """

    query_start: Tensor
    read: Tensor
    write: Tensor
    keep_start: Tensor
    keep_after: Tensor
    keep_slot: Tensor


class Convolution(NamedTuple):
    """Causal convolution of each channel by itself: `weight[taps, channels]`, the oldest input first, and
    `bias[channels]`, in the type of the data; sums are float32, from the oldest input on, then the bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """RMS norm of groups of a row's values, `weight[width]` (float32), and a gate.

    A group has `group` values. `gate_first`: values times SiLU(gate) are normalised (Mamba2); else the norm times
    SiLU(gate) is the result (gated delta rule). Without `weight` there is no norm, only the gate.
    """

    weight: Tensor | None
    group: int
    eps: float = 1e-6
    gate_first: bool = False


def checked(
    x: Tensor, width: int, channels: int, states: LayerStates, moves: Moves, convolution: Convolution
) -> tuple[dict[str, Tensor | None], tuple[object, ...]]:
    """Operands of every operation: by name, and as the compiled modules take them.

    `width` is what x must have in columns, `channels` what the convolution must have. Raises TypeError or ValueError,
    naming the argument, for what does not fit.
    """
    dtype = float_type("x", x)
    rows, _ = rows_of("x", x)
    check("x", x, x.dtype, (rows, width))
    check("weight", convolution.weight, x.dtype, (None, channels))
    taps = len(convolution.weight)
    if not 2 <= taps <= MAX_TAPS:
        raise ValueError(f"weight must have 2 to {MAX_TAPS} taps, not {taps}")
    if not convolution.weight.is_contiguous():
        raise ValueError("weight must be contiguous")
    if convolution.bias is not None:
        check("bias", convolution.bias, x.dtype, (channels,))
    check_slots("columns", states.columns, x.dtype, (taps - 1, channels))
    check_moves(moves, rows, len(states.columns))
    tensors = {
        "x": x, "columns": states.columns, **moves._asdict(), "weight": convolution.weight, "bias": convolution.bias,
    }  # fmt: skip
    columns = (address(states.columns), states.columns.stride(0))
    taken = (address(convolution.weight), address(convolution.bias), taps, channels)
    return tensors, (dtype, rows_at(x), rows, columns, (len(moves.read), *map(address, moves)), taken)


def check_slots(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raises TypeError or ValueError unless `tensor` is one of slots of `shape`, each of them contiguous."""
    check(name, tensor, dtype, (None, *shape))
    if len(tensor) and not tensor[0].is_contiguous():
        raise ValueError(f"{name} must be contiguous within a slot; its strides are {tensor.stride()}")


def check_head_vectors(vectors: dict[str, Tensor | None], width: int) -> None:
    """Raises TypeError or ValueError unless all are float32 vectors of `width` values."""
    for name, vector in vectors.items():
        if vector is not None:
            check(name, vector, torch.float32, (width,))


def check_norm(norm: GatedNorm, width: int) -> None:
    """Raises TypeError or ValueError for a norm that does not fit rows of `width` values."""
    check_head_vectors({"norm": norm.weight}, width)
    if norm.group < 1 or width % norm.group:
        raise ValueError(f"{width} values are not groups of {norm.group}")


def check_moves(moves: Moves, rows: int, slots: int) -> None:
    """Raises TypeError or ValueError for moves of other shapes or, where values are checked, beyond rows or slots."""
    sequences = len(moves.read)
    for name in ("query_start", "keep_start"):
        check(name, getattr(moves, name), torch.int32, (sequences + 1,))
    for name in ("read", "write"):
        check(name, getattr(moves, name), torch.int32, (sequences,))
    check("keep_after", moves.keep_after, torch.int32, (None,))
    check("keep_slot", moves.keep_slot, torch.int32, (len(moves.keep_after),))
    if not checks.wanted(moves.read):
        return
    checks.in_range("query_start", moves.query_start, 0, rows + 1, "rows of x")
    checks.in_range("query_start", moves.query_start.diff(), 0, rows + 1, "its differences")
    for name in ("read", "write", "keep_slot"):
        checks.in_range(name, getattr(moves, name), 0, slots, "slots")
    checks.in_range("keep_start", moves.keep_start, 0, len(moves.keep_after) + 1, "keeps")
    checks.in_range("keep_after", moves.keep_after, 1, rows + 1, "numbers of rows")


def matrices_at(matrices: Tensor) -> tuple[int, int]:
    """Address of slot 0, and elements from one slot to the next."""
    return address(matrices), matrices.stride(0)


def norm_at(norm: GatedNorm) -> tuple[int, int, float, int]:
    return address(norm.weight), norm.group, norm.eps, int(norm.gate_first)
