"""The header of a safetensors file: dtype, shape and place of its tensors."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from octavo_worker.model.errors import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
CONVERTED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types of weights that are not quantised: a read converts them into each other."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file: the name of its type, its shape, and where it lies: bytes from `begin` to `end`."""

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> torch.dtype | None:
        """None: one that no weights are loaded from."""
        return DTYPES.get(self.kind)


def read_header(file: Path) -> dict[str, Place]:
    """The tensors of a safetensors file: eight bytes of length, a JSON header of that length, then the data.
    https://huggingface.co/docs/safetensors. Raises `CheckpointError` for anything else, and for a file that ends before
    its data do."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        try:
            header = json.loads(opened.read(length)) if length <= size else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file} is not a safetensors file; download it again.")
    header.pop("__metadata__", None)
    try:
        places = {name: _place(entry, 8 + length) for name, entry in header.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} is not a safetensors file; download it again.") from error
    for name, place in places.items():
        if place.end > size:
            raise CheckpointError(f"{file} ends before its tensor {name!r} does; download it again.")
        if place.dtype is not None and place.dtype.itemsize * math.prod(place.shape) != place.end - place.begin:
            raise CheckpointError(f"{file} gives its tensor {name!r} another size than its shape; download it again.")
    return places


def _place(entry: dict[str, Any], start: int) -> Place:
    begin, end = entry["data_offsets"]
    return Place(str(entry["dtype"]), tuple(entry["shape"]), start + begin, start + end)
