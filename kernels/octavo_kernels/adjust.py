"""What requests ask of logits beside temperature and filters: bias, penalties, forbidden tokens, a grammar's mask.

The host packs what it knows of all rows into one message of 32-bit words, so that they travel in one copy and are
applied in one launch: a `ROW` for each row of logits, then `ENTRY` records, each token of a row once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import _cpu, cuda
from octavo_kernels.operands import address, rows_at

SEEN, FORBIDDEN = _cpu.SEEN, _cpu.FORBIDDEN
ROW, ENTRY = _cpu.ADJUST_ROW, _cpu.ADJUST_ENTRY
"""numpy types of `AdjustRow` and `AdjustEntry` in csrc/messages.h."""


@dataclass(slots=True)
class Adjustment:
    """Of one row. `repetition`, a divisor of positive logits and a factor of others, is for tokens of `prompt` and
    `output` (CTRL, arXiv 1909.05858, section 4.1); `presence` and `frequency` look at `output` alone."""

    bias: Mapping[int, float] = field(default_factory=dict)
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    forbidden: Iterable[int] = ()
    masked: bool = False

    def entries(self) -> np.ndarray:
        """An `ENTRY` for each token that something is asked of."""
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
    for place, a in enumerate(adjustments):
        row = rows[place]
        row["repetition"], row["presence"], row["frequency"] = a.repetition, a.presence, a.frequency
        row["masked"] = a.masked
    return np.concatenate([part.view(np.int32) for part in (rows, *lists)])


def adjust(logits: Tensor, message: Tensor, latest: Tensor | None = None, allowed: Tensor | None = None) -> None:
    """Applies `message` (int32, on the device of the logits) to `logits[B, V]` (float32) in place.

    In this order: bias, repetition penalty, presence and frequency penalties, forbidden tokens. `latest[B]` (int64): a
    token of each row's output that the message does not count, or -1. `allowed[B, ceil(V / 32)]` (int32): bit t % 32 of
    word t // 32 is 0 for the tokens that a row which is `masked` must not take. Nothing in the message is checked.
    """
    count, vocab = _check(logits, message, latest, allowed)
    if logits.is_cpu:
        _adjust(logits, message.numpy(), latest, allowed)
        return
    cuda.run(
        "adjust", logits.device,
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


def _adjust(logits: Tensor, message: np.ndarray, latest: Tensor | None, allowed: Tensor | None) -> None:
    words = len(logits) * ROW.itemsize // 4
    rows, entries = message[:words].view(ROW), message[words:].view(ENTRY)
    for place, row in enumerate(rows):
        mine = entries[row["first"] : row["first"] + row["entries"]].copy()
        if latest is not None and latest[place] >= 0:
            mine = _with_token(mine, int(latest[place]))
        _adjust_row(logits[place], row, mine)
        if allowed is not None and row["masked"]:
            bits = np.unpackbits(allowed[place].numpy().view(np.uint8), bitorder="little")[: logits.shape[1]]
            logits[place].masked_fill_(torch.from_numpy(bits == 0), -torch.inf)


def _with_token(entries: np.ndarray, token: int) -> np.ndarray:
    if token not in entries["token"]:
        entries = np.append(entries, np.array([(token, 0.0, 0, 0)], ENTRY))
    there = entries["token"] == token
    entries["count"][there] += 1
    entries["flags"][there] |= SEEN
    return entries


def _adjust_row(logits: Tensor, row: np.void, entries: np.ndarray) -> None:
    tokens = torch.from_numpy(entries["token"].astype(np.int64))
    x = logits[tokens].numpy() + entries["bias"]
    with np.errstate(invalid="ignore"):
        x = np.where(entries["flags"] & SEEN, np.where(x > 0, x / row["repetition"], x * row["repetition"]), x)
        penalty = row["presence"] + row["frequency"] * entries["count"].astype(np.float32)
        x = np.where(entries["count"] > 0, x - penalty, x)
    logits[tokens] = torch.from_numpy(np.where(entries["flags"] & FORBIDDEN, np.float32(-np.inf), x))
