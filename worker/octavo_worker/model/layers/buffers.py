"""Scratch memory of a step."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from octavo_worker.model.config import DecoderConfig


@dataclass(slots=True)
class Buffers:
    """One row a token. Every layer overwrites all of it but `hidden`. `up` and `activated` have room for the widest
    MLP, `qkv`, `q` and `room` for the widest attention: `narrowed` is what another takes."""

    hidden: Tensor  # the residual stream
    normed: Tensor
    delta: Tensor  # a sublayer's output, not yet added to the residual stream
    qkv: Tensor
    q: Tensor
    room: Tensor  # of `attended`
    attended: Tensor  # what the latest mixer made, [T, heads, head_dim]
    up: Tensor
    activated: Tensor
    row_context: Tensor | None = None  # of the step's rows, where a Linear reads it
    slots: Tensor | None = None  # of the step's rows
    inputs: Tensor | None = None  # of all layers, of the step's rows

    @classmethod
    def allocate(cls, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> Buffers:
        def buffer(*width: int) -> Tensor:
            return torch.empty((rows, *width), dtype=dtype, device=device)

        seen = config.attentions
        widest = max((c.q_size for c in seen), default=0)
        room = buffer(widest)
        return cls(
            hidden=buffer(config.hidden_size),
            normed=buffer(config.hidden_size),
            delta=buffer(config.hidden_size),
            qkv=buffer(max((c.qkv_size + c.gate_behind for c in seen), default=0)),
            q=buffer(widest),
            room=room,
            attended=room,
            up=buffer(config.widest_mlp * (2 if config.gated else 1)),
            activated=buffer(config.widest_mlp),
        )

    def first(self, rows: int) -> Buffers:
        names = [field.name for field in fields(self) if field.name not in ("row_context", "slots", "inputs")]
        return Buffers(*(getattr(self, name)[:rows] for name in names))

    @staticmethod
    def narrowed(buffer: Tensor, columns: int) -> Tensor:
        """As many rows of so many columns, without gaps, in the same memory."""
        rows, most = buffer.shape
        return buffer if columns == most else buffer.view(-1)[: rows * columns].view(rows, columns)

    def select(self, rows: Tensor, chosen: Buffers) -> Buffers:
        """`chosen`, which has as many rows, with the hidden states and attention outputs of `rows`."""
        chosen.hidden, chosen.attended = self.hidden[rows], self.attended[rows]
        chosen.row_context = None if self.row_context is None else self.row_context[rows]
        chosen.inputs = None if self.inputs is None else self.inputs[rows]
        return chosen
