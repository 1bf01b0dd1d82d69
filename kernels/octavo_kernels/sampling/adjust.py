"""Adjustments of logits beside temperature and filters: bias, penalties, forbidden tokens, a grammar's mask.

The host packs what it knows of all rows into one message of 32-bit words, so that they travel in one copy and are
applied in one launch: a `ROW` for each row of logits, then `ENTRY` records, each token of a row once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import _cpu
from octavo_kernels.call import run
from octavo_kernels.operands import address, rows_at

SEEN, FORBIDDEN = _cpu.SEEN, _cpu.FORBIDDEN
ROW, ENTRY = _cpu.ADJUST_ROW, _cpu.ADJUST_ENTRY
"""numpy types of `AdjustRow` and `AdjustEntry` in csrc/messages.h."""
_NO_ENTRIES = np.zeros(0, ENTRY)


@dataclass(slots=True)
class Adjustment:
    """Adjustment of one row. `repetition`, a divisor of positive logits and a factor of others, is for tokens of
    `prompt` and `output` (CTRL, arXiv 1909.05858, section 4.1); `presence` and `frequency` look at `output` alone."""

    bias: Mapping[int, float] = field(default_factory=dict)
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    forbidden: Collection[int] = ()
    masked: bool = False

    def entries(self) -> np.ndarray:
        """An `ENTRY` for each token that something is asked of."""
        if not (self.bias or self.prompt or self.output or self.forbidden):
            return _NO_ENTRIES
        bias = np.fromiter(self.bias, np.int64)
        seen = np.empty(0, np.int64)
        if self.repetition != 1.0:
            seen = np.unique(np.fromiter((*self.prompt, *self.output), np.int64))
        used, counts = np.empty(0, np.int64), np.empty(0, np.int64)
        if self.presence or self.frequency:
            used, counts = np.unique(np.fromiter(self.output, np.int64), return_counts=True)
        forbidden = np.fromiter(self.forbidden, np.int64)
        tokens = np.unique(np.concatenate((bias, seen, used, forbidden)))
        entries = np.zeros(len(tokens), ENTRY)
        entries["token"] = tokens
        entries["bias"][np.searchsorted(tokens, bias)] = np.fromiter(self.bias.values(), np.float32)
        entries["count"][np.searchsorted(tokens, used)] = counts
        entries["flags"][np.searchsorted(tokens, seen)] |= SEEN
        entries["flags"][np.searchsorted(tokens, forbidden)] |= FORBIDDEN
        return entries


def pack(adjustments: Sequence[Adjustment]) -> np.ndarray:
    """The message for rows of logits in this order, int32."""
    rows, lists = np.zeros(len(adjustments), ROW), [a.entries() for a in adjustments]
    lengths = np.array([len(entries) for entries in lists], np.int32)
    rows["first"], rows["entries"] = np.cumsum(lengths) - lengths, lengths
    for name in ("repetition", "presence", "frequency", "masked"):
        rows[name] = [getattr(a, name) for a in adjustments]
    return np.concatenate([part.view(np.int32) for part in (rows, *lists)])


def adjust(logits: Tensor, message: Tensor, latest: Tensor | None = None, allowed: Tensor | None = None) -> None:
    """Applies `message` (int32, on the device of the logits) to `logits[B, V]` (float32) in place.

    In this order: bias, repetition penalty, presence and frequency penalties, forbidden tokens. `latest[B]` (int64): a
    token of each row's output that the message does not count, or -1. `allowed[B, ceil(V / 32)]` (int32): bit t % 32 of
    word t // 32 is 0 for the tokens that a row which is `masked` must not take. Nothing in the message is checked.
    """
    count, vocab = _check(logits, message, latest, allowed)
    run(
        "adjust", {"logits": logits, "message": message, "latest": latest, "allowed": allowed},
        rows_at(logits), count, vocab, message.data_ptr(), address(latest), rows_at(allowed),
    )  # fmt: skip


def _check(logits: Tensor, message: Tensor, latest: Tensor | None, allowed: Tensor | None) -> tuple[int, int]:
    if logits.dtype != torch.float32:
        raise TypeError(f"logits must be float32, not {logits.dtype}")
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits must have shape [rows, vocabulary] and dense rows, not {list(logits.shape)}")
    count, vocab = logits.shape
    for name, tensor, dtype, shape in (
        ("message", message, torch.int32, (len(message),)),
        ("latest", latest, torch.int64, (count,)),
        ("allowed", allowed, torch.int32, (count, -(-vocab // 32))),
    ):
        if tensor is None:
            continue
        if tensor.dtype != dtype:
            raise TypeError(f"{name} must be {dtype}, not {tensor.dtype}")
        if tensor.shape != shape or tensor.stride(-1) != 1:
            raise ValueError(f"{name} must have shape {list(shape)} and dense rows, not {list(tensor.shape)}")
        if tensor.device != logits.device:
            raise ValueError(f"{name} is on {tensor.device}, but logits is on {logits.device}")
    if len(message) < count * ROW.itemsize // 4:
        raise ValueError(f"message must have a record for each of {count} rows, but has {len(message)} words")
    return count, vocab
