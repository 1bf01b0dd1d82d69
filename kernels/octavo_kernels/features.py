"""Features of a device's kernels, by name. A build or a chip that lacks something lacks its name here, so that it is
refused before it is called."""

from __future__ import annotations

from enum import StrEnum

import torch

from octavo_kernels import _cpu, cuda


class Feature(StrEnum):
    """Features that not every device has. Requests ask for the first four."""

    FILTERS = "filters"
    ADJUSTMENTS = "adjustments"
    MASKS = "masks"
    LOGPROBS = "logprobs"
    UNIFORM = "uniform"
    """A row's bits depend neither on the other rows nor on their number."""
    GRAPHS = "graphs"
    RANKS = "ranks"
    """Several processes compute one model."""
    EXPERTS = "experts"
    """Mixtures of experts."""
    LATENT = "latent"
    """Latent rows, and heads with 512 values on tensor cores."""
    RECURRENT = "recurrent"
    """Layers that keep a state; of which sizes: recurrent/sizes.py."""


OPERATIONS = {
    Feature.FILTERS: "sample",
    Feature.ADJUSTMENTS: "adjust",
    Feature.MASKS: "adjust",
    Feature.LOGPROBS: "logprobs",
}


def features(device: torch.device) -> frozenset[Feature]:
    """Features of a device whose kernels are built."""
    module = _cpu if device.type == "cpu" else cuda.compiled
    found = {feature for feature, operation in OPERATIONS.items() if hasattr(module, operation)}
    if device.type == "cpu":
        return frozenset(found | {Feature.UNIFORM, Feature.RANKS, Feature.EXPERTS, Feature.RECURRENT, Feature.LATENT})
    if cuda.runs_hopper_code(device):
        found |= {Feature.UNIFORM, Feature.EXPERTS, Feature.RECURRENT, Feature.LATENT}
    if torch.version.hip is None:  # on AMD's GPUs graphs of these launches were never tried
        found.add(Feature.GRAPHS)
    if hasattr(module, "Exchange"):
        found.add(Feature.RANKS)
    return frozenset(found)
