"""Where tensors come from: the safetensors files of a folder, or a random generator."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from octavo_kernels.products.weights import DTYPES, PER_BYTE, Codes, QuantisedWeight, Scheme, values
from octavo_worker.contract.files import INDEX, DamagedFile, indexed, tensor_files
from octavo_worker.model.checkpoint.header import CONVERTED, KINDS, Place, read_header
from octavo_worker.model.errors import CheckpointError

log = logging.getLogger(__name__)

PIECE = 1024  # rows of a random matrix that are drawn at a time

STACKED = {"weight": "", "bias": "_bias", "blocks": "_blocks", "scales": "_scales"}
"""Tensors of a matrix, and what follows its name where all experts' are stacked in one."""
CACHE_SCALES = (".k_scale", ".v_scale", ".q_scale", ".output_scale", ".output_zero_point")
"""Endings of what some checkpoints store for keys and values, and for the queries they meet."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's share of a tensor of `shape`: ranges of its rows, one after the other, and of a matrix a range of its
    columns."""

    shape: tuple[int, ...]
    rows: Sequence[range]
    columns: range = range(0)

    @property
    def held(self) -> tuple[int, ...]:
        """Its own shape."""
        rows = sum(map(len, self.rows))
        return (rows,) if len(self.shape) == 1 else (rows, len(self.columns))

    @property
    def has_whole_rows(self) -> bool:
        return len(self.shape) == 1 or len(self.columns) == self.shape[1]

    def of(self, whole: Tensor) -> Tensor:
        """A view of it, unless its rows lie in several pieces."""
        pieces = [whole[some.start : some.stop] for some in self.rows]
        rows = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return rows if self.has_whole_rows else rows[:, self.columns.start : self.columns.stop]


class WeightSource(Protocol):
    """Where tensors come from."""

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        """The first of `candidates` with which a tensor `marker` exists."""
        ...

    def under(self, name: str) -> Mapping[str, Place]:
        """The tensors `name.*`, by what stands for the star; empty if there is none, or none has to be there."""
        ...

    def join(self, name: str, turned: bool) -> Mapping[str, Place]:
        """Makes stacked tensors of a name, `name`, `name.*`, `name_bias` and others of `STACKED`, into `name.weight`,
        `name.bias` and so on, those of one matrix that has the stacked ones, or, if weights are `turned`, their
        transposes, below each other. The tensors by their endings; empty if there is none."""
        ...

    def read(self, name: str, target: Tensor, transposed: bool = False, cut: Cut | None = None) -> None:
        """Fills `target` with a tensor, or with its transpose, or with a `cut` of either. The values may arrive as late
        as `wait`. Values are converted between the types that weights are computed with; all others must be of the
        target's type."""
        ...

    def skip(self, name: str) -> None:
        """Counts a tensor that is of no use as read."""
        ...

    def wait(self) -> None:
        """Returns when the values of all tensors read until now are there."""
        ...

    def finish(self, has_no_use: Callable[[str], bool]) -> None:
        """Waits for all reads. Refuses tensors that were not read, except for those whose names `has_no_use`."""
        ...


@dataclass
class Checkpoint:
    """The safetensors files of a folder, single or sharded.

    Raises `CheckpointError`, naming tensors, for a tensor that is missing, has another shape or type, or has no use.
    """

    files: dict[str, Path]  # tensor name -> file
    places: dict[str, Place]
    unread: set[str] = field(default_factory=set)
    joined: dict[str, str] = field(default_factory=dict)  # a tensor that was joined -> the stack in the file
    turned: set[str] = field(default_factory=set)  # those of them whose parts are transposed
    handles: dict[Path, safe_open] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """The checkpoint in `folder`. Raises `CheckpointError` for files or tensors that its index lacks or names in
        vain."""
        try:
            paths, files = tensor_files(folder), indexed(folder)
        except DamagedFile as error:
            raise CheckpointError(str(error)) from error
        if not paths:
            raise CheckpointError(_no_safetensors(folder))
        if absent := [file.name for file in paths if not file.is_file()]:
            raise CheckpointError(f"{folder}: {INDEX} names files that are not there: {', '.join(absent)}.")
        headers = {file: read_header(file) for file in paths}
        if files is None:
            files = _files_of(folder, headers)
        if lost := [name for name, file in files.items() if name not in headers[file]]:
            raise CheckpointError(
                f"{folder}: {INDEX} names {lost[0]!r} in {files[lost[0]].name}, which has no such tensor."
            )
        return cls(files, {name: headers[file][name] for name, file in files.items()}, set(files))

    @cached_property
    def _modules(self) -> dict[str, dict[str, Place]]:
        modules: dict[str, dict[str, Place]] = {}
        for name, place in self.places.items():
            module, _, ending = name.rpartition(".")
            modules.setdefault(module, {})[ending] = place
        return modules

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        """The candidate that the names of tensors begin with. Raises `CheckpointError` for names of a larger model."""
        for candidate in candidates:
            if f"{candidate}{marker}" in self.files:
                return candidate
        for ending in (f"{candidates[0]}{marker}", marker):
            if inside := [name for name in self.files if name.endswith(f".{ending}")]:
                raise CheckpointError(
                    f"the checkpoint's tensors have other names: {inside[0]!r} where {candidates[0] + marker!r} is "
                    "expected. It is that of a larger model, or of other code; save the text model by itself, by "
                    "transformers' save_pretrained, and serve that folder."
                )
        return candidates[0]

    def under(self, name: str) -> Mapping[str, Place]:
        return self._modules.get(name, {})

    def join(self, name: str, turned: bool) -> Mapping[str, Place]:
        parts = {ending: f"{name}.{ending}" for ending in self.under(name)}
        parts |= {end: f"{name}{tail}" for end, tail in STACKED.items() if f"{name}{tail}" in self.places}
        for ending, whole in parts.items():
            made, place = f"{name}.{ending}", self.places[whole]
            count, rows, *columns = (*place.shape, 1)[: max(2, len(place.shape))]
            if turned and ending == "weight":
                self.turned.add(made)
                (rows,), columns = columns, [rows]
            shape = (count * rows, math.prod(columns)) if columns else (count * rows,)
            self.unread.discard(whole)
            self.unread.add(made)
            self.places[made] = self._modules.setdefault(name, {})[ending] = replace(place, shape=shape)
            self.files[made], self.joined[made] = self.files[whole], whole
        return self.under(name)

    def read(self, name: str, target: Tensor, transposed: bool = False, cut: Cut | None = None) -> None:
        self._check(name, target, transposed, cut)
        self.unread.discard(name)
        stored = self._handle(name).get_tensor(self.joined.get(name, name))  # pages that are read as they are used
        stored = (stored.to(target.device).mT if name in self.turned else stored).reshape(self.places[name].shape)
        stored = stored.T if transposed else stored
        target.copy_(stored if cut is None else cut.of(stored))

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name, as pages of their files, which are read as they are used."""
        return {name: self._handle(name).get_tensor(name) for name in self.files}

    def _handle(self, name: str) -> safe_open:
        file = self.files[name]
        if file not in self.handles:
            self.handles[file] = safe_open(file, framework="pt")
        return self.handles[file]

    def skip(self, name: str) -> None:
        self.unread.discard(name)

    def wait(self) -> None:
        pass  # `read` has waited

    def finish(self, has_no_use: Callable[[str], bool]) -> None:
        """Ends the reading. Raises `CheckpointError` for tensors that were not read."""
        if scales := [name for name in self.unread if name.endswith(CACHE_SCALES)]:
            log.info("%d scales of a KV cache in 8 bits are not used: octavo's has a scale a token", len(scales))
        left = (name for name in self.unread if not name.endswith(CACHE_SCALES))
        if surplus := sorted(name for name in left if not has_no_use(name)):
            shown = ", ".join(surplus[:5]) + (f" and {len(surplus) - 5} more" if len(surplus) > 5 else "")
            raise CheckpointError(f"the checkpoint has tensors that its config.json has no place for: {shown}.")

    def _check(self, name: str, target: Tensor, transposed: bool, cut: Cut | None) -> None:
        place, wanted = self.places.get(name), tuple(target.shape) if cut is None else cut.shape
        if place is None:
            raise CheckpointError(f"tensor {name!r} is missing from the checkpoint; does config.json belong to it?")
        shape = place.shape[::-1] if transposed else place.shape
        if shape != wanted:
            raise CheckpointError(f"tensor {name!r} has shape {shape}, but config.json says {wanted}.")
        if place.dtype is not target.dtype and not (place.dtype in CONVERTED and target.dtype in CONVERTED):
            raise CheckpointError(
                f"tensor {name!r} is stored as {place.kind}, but {KINDS[target.dtype]} belongs there; does config.json "
                "belong to the checkpoint?"
            )


class RandomWeights:
    """Seeded weights for `--load-format dummy`, drawn on their device as for a freshly initialised model. On the CPU
    they are the same on every machine."""

    def __init__(self, seed: int, norm_scale: float, device: torch.device, std: float = 0.02) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.norm_scale = norm_scale
        self.std = std

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        return candidates[0]

    def under(self, name: str) -> Mapping[str, Place]:
        return {}  # only what every model has

    def join(self, name: str, turned: bool) -> Mapping[str, Place]:
        return {}

    def read(self, name: str, target: Tensor, transposed: bool = False, cut: Cut | None = None) -> None:
        """Draws a tensor as a whole, also to keep a cut of it: the model is the same for any number of ranks."""
        if target.dim() == 1:
            target.fill_(0.0 if name.endswith(".bias") else self.norm_scale)
        else:
            dtype, shape = torch.float32 if target.is_cpu else target.dtype, target.shape if cut is None else cut.shape
            made = torch.empty(shape, dtype=dtype, device=target.device)
            made.normal_(0.0, self.std, generator=self.generator)
            target.copy_(made if cut is None else cut.of(made))

    def quantised(self, scheme: Scheme, rows: int, depth: int) -> QuantisedWeight:
        """Codes of equal likelihood, of FP8 normal ones, with one scale, of bfloat16 as most checkpoints' are: with the
        deviation of all others and a mean of 0, without which a decoder's rows would choose the same experts."""
        codes = torch.empty(rows, depth // PER_BYTE[scheme.codes], dtype=torch.uint8, device=self.generator.device)
        for some in codes.split(PIECE):  # float32 is four times as large
            if scheme.codes is Codes.FP8:
                made = torch.empty(some.shape, device=codes.device).normal_(generator=self.generator)
                some.copy_(made.to(torch.float8_e4m3fn).view(torch.uint8))
            elif scheme.codes is Codes.INT4:  # two from 1 to 15, as -8 has no counterpart
                some.random_(0, 225, generator=self.generator)
                some.copy_(some // 15 * 16 + some % 15 + 17)
            else:
                some.random_(0, 256, generator=self.generator)
        codes = codes.view(DTYPES[scheme.codes])
        groups = -(-depth // scheme.group)
        scale = (self.std / values(codes[:PIECE], scheme.codes).std()).bfloat16().float()
        return QuantisedWeight(scheme, codes, scale.expand(groups, rows).contiguous())

    def skip(self, name: str) -> None:
        pass

    def wait(self) -> None:
        pass

    def finish(self, has_no_use: Callable[[str], bool]) -> None:
        pass


def _files_of(folder: Path, headers: Mapping[Path, Mapping[str, Place]]) -> dict[str, Path]:
    """The file of each tensor where no index says it."""
    files: dict[str, Path] = {}
    for file, header in headers.items():
        for name in header:
            if (other := files.setdefault(name, file)) is not file:
                raise CheckpointError(
                    f"{folder}: tensor {name!r} is in {other.name} and in {file.name}, and no {INDEX} says which is "
                    "meant; remove what does not belong to the model, or add its index."
                )
    return files


def _no_safetensors(folder: Path) -> str:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        return (
            f"{folder} holds pickled weights (.bin), which can run code when loaded. Convert them once: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, safe_serialization=True)."
        )
    if any(folder.glob("*.gguf")):
        return f"{folder} holds llama.cpp's .gguf weights. Give the safetensors checkpoint that they were made from."
    return f"{folder} holds no .safetensors weights. To run with random weights give --load-format dummy."
