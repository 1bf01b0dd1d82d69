"""Tables by position that layers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_worker.model.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables by position: the rotary ones by the names that the config gives them, and the factors of queries."""

    cos_sin: Mapping[str, Tensor]
    temperature: Tensor | None = None

    @classmethod
    def of(cls, config: DecoderConfig, positions: int, dtype: torch.dtype, device: torch.device) -> Tables:
        """Tables of so many positions, for values of the type `dtype`."""
        cos_sin = {name: rope.cos_sin(positions).to(device) for name, rope in config.ropes.items()}
        factors = None if config.temperature is None else config.temperature.table(positions).to(device, dtype)
        return cls(cos_sin, factors)
