"""FP8 as FBGEMM computes with it, Meta's form of Llama 3.1 405B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_kernels.products.weights import Scheme
from octavo_worker.model.checkpoint.formats.scaled_fp8 import fp8_group, fp8_part
from octavo_worker.model.checkpoint.formats.stored import HEAD, Part, Stored
from octavo_worker.model.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Fbgemm:
    """A scale a row. The config's bound of activations (`activation_scale_ub`) is not used: it guards a coarser scale
    than octavo's of each token."""

    dense: tuple[str, ...]

    @classmethod
    def stated(cls, config: Mapping[str, Any]) -> Fbgemm:
        return cls(tuple(config.get("modules_to_not_convert") or ()))

    def stored(self, part: Part) -> Stored | None:
        """The form of a part. Raises `CheckpointError` where its tensors and the config disagree."""
        form = fp8_part(part, fp8_group("row"))
        if form is not None and part.name in self.dense:
            raise CheckpointError(f"tensor '{part.name}.weight' is quantised, but modules_to_not_convert names it.")
        return form

    def scheme(self, name: str, depth: int) -> Scheme | None:
        return None if name in (HEAD, *self.dense) else fp8_group("row").scheme(depth)
