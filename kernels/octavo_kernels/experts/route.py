"""The choice among experts."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from octavo_kernels import _cpu
from octavo_kernels.call import check, check_devices, rows_of
from octavo_kernels.operands import address, rows_at

Score = Literal["softmax", "sigmoid", "chosen softmax"]
SCORES = {"softmax": 0, "sigmoid": 1, "chosen softmax": 2}


class Routing(NamedTuple):
    """How a row takes `chosen` of `experts` by its logits.

    Its score of an expert is their softmax or their sigmoid; "chosen softmax": the logit itself, and weights are the
    softmax over the experts chosen. It takes the highest scores, of equal ones the lowest expert, among `top_groups` of
    `groups` of neighbours: those with the largest sums of their `group_best` highest scores. Weights are the scores,
    if `normalised` over `max(their sum + eps, least)`, times `scale`.
    """

    experts: int
    chosen: int
    score: Score = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    normalised: bool = False
    eps: float = 0.0
    least: float = 0.0
    scale: float = 1.0


class Assignments(NamedTuple):
    """Rows and the experts that they take, ascending: `weights[T, chosen]` (float32), and of the list of all pairs, by
    expert and then by row, the `places[T, chosen]` of a row's own, the row of each, `sources[T * chosen]`, and where
    those of each expert begin, `starts[experts + 1]` (int32)."""

    weights: Tensor
    places: Tensor
    sources: Tensor
    starts: Tensor


def route(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Assignments:
    """Choice of each row of `logits[T, experts]` (float32). `correction[experts]` (float32) is added to scores for the
    choice, not for the weights. A row's choice depends on nothing but its logits; one that is no number comes last.
    Raises `TypeError` or `ValueError`, naming the argument, for what does not fit."""
    rows, _ = rows_of("logits", logits)
    check("logits", logits, torch.float32, (rows, routing.experts))
    if correction is not None:
        check("correction", correction, torch.float32, (routing.experts,))
    _check_cpu({"logits": logits, "correction": correction})
    check_routing(routing)
    made = Assignments(
        torch.empty(rows, routing.chosen),
        torch.empty(rows, routing.chosen, dtype=torch.int32),
        torch.empty(rows * routing.chosen, dtype=torch.int32),
        torch.empty(routing.experts + 1, dtype=torch.int32),
    )
    how = (routing.experts, routing.chosen, SCORES[routing.score], *routing[3:6], int(routing.normalised), *routing[7:])
    _cpu.route(rows_at(logits), rows, how, address(correction), *(address(tensor) for tensor in made))
    return made


def sigmoid(values: Tensor) -> Tensor:
    """The sigmoid of float32 `values`, in place. torch's gives an element other bits at the end of a tensor than in its
    middle. Raises `TypeError` or `ValueError` for values that are not contiguous or not on a CPU."""
    check("values", values, torch.float32, tuple(values.shape))
    _check_cpu({"values": values})
    if not values.is_contiguous():
        raise ValueError("values must be contiguous")
    _cpu.sigmoids(address(values), values.numel())
    return values


def check_routing(routing: Routing) -> None:
    """Raises ValueError for a routing that makes no sense."""
    if routing.score not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}, not {routing.score!r}")
    if not 0 < routing.top_groups <= routing.groups or routing.experts % routing.groups:
        raise ValueError(f"{routing.experts} experts do not have {routing.top_groups} of {routing.groups} even groups")
    size = routing.experts // routing.groups
    if not 0 < routing.group_best <= size:
        raise ValueError(f"a group of {size} experts has no {routing.group_best} best")
    if not 0 < routing.chosen <= routing.top_groups * size:
        raise ValueError(f"{routing.chosen} cannot be chosen of {routing.top_groups * size} experts")


def _check_cpu(tensors: dict[str, Tensor | None]) -> None:
    if (device := check_devices(tensors)).type != "cpu":
        raise ValueError(f"{next(iter(tensors))} is on {device}; on a GPU take `route_rows`")
