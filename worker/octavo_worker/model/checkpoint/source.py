"""Where tensors come from: the safetensors files of a folder, or a random generator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from octavo_worker.files import INDEX, tensor_files
from octavo_worker.model.errors import CheckpointError


class WeightSource(Protocol):
    """Where tensors come from."""

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        """The first of `candidates` with which a tensor `marker` exists."""
        ...

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of this name, for those that a model can do without."""
        ...

    def read(self, name: str, target: Tensor, transposed: bool = False) -> None:
        """Fills `target` with a tensor, or with its transpose. The values may arrive as late as `finish`."""
        ...

    def wait(self) -> None:
        """Until the values of all tensors asked for have arrived."""
        ...

    def finish(self, ignored: Iterable[str]) -> None:
        """Waits for all reads. Refuses tensors that were not read, except for names with an `ignored` ending."""
        ...


@dataclass
class Checkpoint:
    """The safetensors files of a folder, single or sharded.

    Raises `CheckpointError`, naming tensors, for a tensor that is missing, has another shape, or has no use.
    """

    files: dict[str, Path]  # tensor name -> file
    unread: set[str] = field(default_factory=set)
    handles: dict[Path, safe_open] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        if (folder / INDEX).is_file():
            names = json.loads((folder / INDEX).read_text())["weight_map"]
            files = {name: folder / file for name, file in names.items()}
        else:
            files = {}
            for file in tensor_files(folder):
                with safe_open(file, framework="pt") as tensors:
                    files |= dict.fromkeys(tensors.keys(), file)
        if not files:
            raise CheckpointError(_no_safetensors(folder))
        if absent := sorted({file.name for file in files.values() if not file.is_file()}):
            raise CheckpointError(f"{folder}: {INDEX} names files that are not there: {', '.join(absent)}.")
        return cls(files, set(files))

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        for candidate in candidates:
            if f"{candidate}{marker}" in self.files:
                return candidate
        return candidates[0]

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def read(self, name: str, target: Tensor, transposed: bool = False) -> None:
        if name not in self.files:
            raise CheckpointError(f"tensor {name!r} is missing from the checkpoint; does config.json belong to it?")
        file = self.files[name]
        if file not in self.handles:
            self.handles[file] = safe_open(file, framework="pt")
        tensor = self.handles[file].get_tensor(name)
        tensor = tensor.T if transposed else tensor
        if tensor.shape != target.shape:
            wanted, got = tuple(target.shape), tuple(tensor.shape)
            raise CheckpointError(f"tensor {name!r} has shape {got}, but config.json says {wanted}.")
        target.copy_(tensor)
        self.unread.discard(name)

    def wait(self) -> None:
        pass

    def finish(self, ignored: Iterable[str]) -> None:
        endings = tuple(ignored)
        if surplus := sorted(name for name in self.unread if not name.endswith(endings)):
            shown = ", ".join(surplus[:5]) + (f" and {len(surplus) - 5} more" if len(surplus) > 5 else "")
            raise CheckpointError(f"the checkpoint has tensors that its config.json has no place for: {shown}.")


class RandomWeights:
    """Seeded weights for `--load-format dummy`, drawn on their device as for a freshly initialised model. On the CPU
    they are the same on every machine."""

    def __init__(self, seed: int, norm_scale: float, device: torch.device, std: float = 0.02) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.norm_scale = norm_scale
        self.std = std

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        return candidates[0]

    def __contains__(self, name: str) -> bool:
        return False  # only what every model has

    def read(self, name: str, target: Tensor, transposed: bool = False) -> None:
        if target.dim() == 1:
            target.fill_(0.0 if name.endswith(".bias") else self.norm_scale)
        else:
            dtype = torch.float32 if target.is_cpu else target.dtype
            made = torch.empty(target.shape, dtype=dtype, device=target.device)
            target.copy_(made.normal_(0.0, self.std, generator=self.generator))

    def wait(self) -> None:
        pass

    def finish(self, ignored: Iterable[str]) -> None:
        pass


def _no_safetensors(folder: Path) -> str:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        return (
            f"{folder} holds pickled weights (.bin), which can run code when loaded. Convert them once: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, safe_serialization=True)."
        )
    return f"{folder} holds no .safetensors weights. To run with random weights give --load-format dummy."
