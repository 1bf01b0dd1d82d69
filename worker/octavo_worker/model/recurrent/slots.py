"""Slots of recurrent states in memory: a pool on the device, one on the host, and each layer's views of the former."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels.ops import LayerStates, Moves
from octavo_worker.contract.state import StateLayout, StateMove, StateMoves
from octavo_worker.model.transfer import DTYPES


class SlotPools(NamedTuple):
    """`device[slots, slot_bytes]` and `host[host_slots, slot_bytes]`, int8. On a CPU both are parts of one piece."""

    device: Tensor
    host: Tensor


def empty_slots(layout: StateLayout, slots: int, host_slots: int, device: torch.device) -> SlotPools:
    """Pools whose values are undefined. CPU memory beside a GPU is pinned."""
    if device.type == "cpu":
        both = torch.empty(slots + host_slots, layout.slot_bytes, dtype=torch.int8)
        return SlotPools(both[:slots], both[slots:])
    host = torch.empty(host_slots, layout.slot_bytes, dtype=torch.int8, pin_memory=host_slots > 0)
    return SlotPools(torch.empty(slots, layout.slot_bytes, dtype=torch.int8, device=device), host)


def layer_states(slots: Tensor, layout: StateLayout) -> list[LayerStates | None]:
    """Each layer's share of `slots[S, slot_bytes]`; None where it keeps no state."""
    views = list[LayerStates | None]()
    for spec, piece in zip(layout.specs, layout.pieces, strict=True):
        if spec is None or piece is None:
            views.append(None)
            continue
        matrices = None
        if spec.matrix:
            part = slots[:, piece.matrix : piece.matrix + spec.matrix_bytes]
            matrices = part.view(torch.float32).unflatten(1, spec.matrix)
        channels, before = spec.columns
        part = slots[:, piece.columns : piece.columns + spec.column_bytes]
        views.append(LayerStates(matrices, part.view(DTYPES[spec.dtype]).unflatten(1, (before, channels))))
    return views


def moves_of(moves: Sequence[StateMove | None], query_start: Tensor) -> Moves | None:
    """The moves of a step's sequences on the device of `query_start`; None: no sequence has one."""
    if not any(move is not None for move in moves):
        return None
    made = StateMoves.of(moves)
    words = (made.read, made.write, made.keep_start, made.keep_after, made.keep_slot)
    return Moves(query_start, *(torch.from_numpy(each).to(query_start.device) for each in words))


def no_moves(query_start: Tensor) -> Moves:
    """Moves of sequences that all begin with zeros and leave nothing."""
    none, no_keeps = torch.zeros_like(query_start[1:]), query_start.new_empty(0)
    return Moves(query_start, none, none, torch.zeros_like(query_start), no_keeps, no_keeps)
