"""Experts of mixtures in benchmarks: how evenly rows take them, and how many a step reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_worker.model.decoder import Decoder
from octavo_worker.model.layers.norm import Input

ROWS = (1, 8, 32, 64, 256)


@dataclass(frozen=True, slots=True)
class ExpertBytes:
    """Bytes of all experts of a layer, of which a row takes `chosen`."""

    nbytes: int
    experts: int
    chosen: int

    def unread(self, rows: int) -> float:
        """Bytes that so many independent rows leave unread."""
        return self.nbytes * (1 - self.chosen / self.experts) ** rows


def expert_bytes(model: Decoder) -> list[ExpertBytes]:
    """For each layer that is a mixture."""
    found = []
    for mixture in model.mixtures:
        routing = mixture.router.routing
        found.append(ExpertBytes(mixture.up.nbytes + mixture.down.nbytes, routing.experts, routing.chosen))
    return found


def skew_routing(router: Tensor, skew: float) -> None:
    """Makes logits of the e-th expert smaller by a factor of `e ** skew`: with 0.5 rows take experts about as often as
    a Zipf distribution says. Of random weights."""
    places = torch.arange(1, len(router) + 1, dtype=torch.float32, device=router.device)
    router.mul_(places.pow(-skew).to(router.dtype)[:, None])


@torch.inference_mode()
def experts_hit(model: Decoder, seed: int = 0) -> dict[int, float]:
    """Experts that so many random rows hit, on average over layers."""
    made = model.mixtures
    hit = dict.fromkeys(ROWS if made else (), 0.0)
    generator = torch.Generator(model.device).manual_seed(seed)
    for rows in hit:
        for mixture in made:
            depth = mixture.router.logits.weight.shape[1]
            x = torch.randn(rows, depth, generator=generator, device=model.device).to(model.dtype)
            taken = mixture.router.listed(Input(x))
            hit[rows] += int((taken.starts.diff() > 0).sum()) / len(made)
    return {rows: round(count, 1) for rows, count in hit.items()}
