"""Pinned memory for a step's message to the device and for its answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SLOTS = 3  # two steps in flight, and one that is being written


@dataclass(slots=True)
class Slot:
    """One step's memory. `sent` fires when the message may be overwritten, `done` when `tokens` have arrived, and
    `inputs`: the tokens of decodes, where the device alone knew them."""

    message: Tensor
    words: np.ndarray  # the same memory
    tokens: Tensor
    inputs: Tensor
    began: torch.cuda.Event
    sent: torch.cuda.Event
    done: torch.cuda.Event


class Mailbox:
    """Messages of at most `words` int32 and answers of at most `tokens` int64. Slots are used in turn: a step's answer
    must be read before the step `SLOTS` later is written."""

    def __init__(self, words: int, tokens: int) -> None:
        self._slots = [_slot(words, tokens) for _ in range(SLOTS)]
        self._next = 0

    def take(self) -> Slot:
        """The next slot, once the device has read what was in it."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        slot.sent.synchronize()
        return slot


def _slot(words: int, tokens: int) -> Slot:
    message = torch.zeros(words, dtype=torch.int32, pin_memory=True)
    answer, inputs = (torch.zeros(tokens, dtype=torch.int64, pin_memory=True) for _ in range(2))
    began, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    return Slot(message, message.numpy(), answer, inputs, began, torch.cuda.Event(), done)
