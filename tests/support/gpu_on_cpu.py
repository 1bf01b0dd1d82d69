"""A GPU for `CudaRunner` and its ranks, which is the CPU: everything is done when it is launched.

Kernels are those of the CPU, so steps are not padded, and there are neither graphs nor plans. What remains is what the
runner, the sampler and the ranks do around kernels.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo_kernels import operands, ops
from octavo_kernels.exchange.ranks import sample_part
from octavo_worker.ranks.cpu_group import CpuGroup
from octavo_worker.runner.cuda import runner as cuda_runner
from octavo_worker.runner.cuda.shapes import RaggedShape, StepShapes
from octavo_worker.runner.parallel import leader, sampling

ALL = float(np.finfo(np.float32).min)


class Nothing:
    """A stream or an event."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return Nothing

    def elapsed_time(self, _: Nothing) -> float:
        return 0.0


class Plans:
    chunks = 1

    def __init__(self, *_: object, **__: object) -> None: ...

    def make_room(self, chunks: int) -> None: ...

    def for_step(self, *_: object, **__: object) -> dict[int, Any]:
        return {}


class Group(CpuGroup):
    """Sums as a GPU's: with the norm that comes next."""

    fuses_norms = True

    def add(
        self,
        addend: Tensor,
        out: Tensor,
        residual: Tensor | None = None,
        norm: operands.RmsNorm | None = None,
        normed: Tensor | None = None,
    ) -> None:
        super().add(addend, out, residual)
        if norm is not None:
            ops.rms_norm(out, norm.weight, norm.eps, out=normed, offset=norm.offset)


def draw_part(logits: Tensor, samples: Tensor, first: int) -> Tensor:
    """Best values as bits, beside the tokens."""
    floors = torch.full((len(logits),), ALL)
    tokens, reached = sample_part(logits.float().contiguous(), samples.contiguous(), first, floors)
    return torch.stack((reached.double().view(torch.int64), tokens), dim=1)


def best_part(candidates: Tensor, out: Tensor) -> Tensor:
    reached = candidates[:, :, 0].contiguous().view(torch.float64)
    best = torch.from_numpy(reached.numpy().argmax(axis=0))  # the first of equals
    return out.copy_(candidates[best, torch.arange(len(best)), 1])


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, pin_memory=False, **more: zeros(*size, **more))
    for name in ("Stream", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Nothing)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(cuda_runner, "carry", lambda source, target: target.copy_(source))
    monkeypatch.setattr(cuda_runner, "AttentionPlans", Plans)
    monkeypatch.setattr(cuda_runner, "_shared_reading", lambda *_: None)
    monkeypatch.setattr(cuda_runner, "few_queries", lambda _, windowed: 0)
    monkeypatch.setattr(StepShapes, "of", lambda *_: RaggedShape(1, prompts_only=False, is_staged=False))
    monkeypatch.setattr(sampling, "draw_part", draw_part)
    monkeypatch.setattr(sampling, "best_part", best_part)
    monkeypatch.setattr(leader, "CpuGroup", Group)
