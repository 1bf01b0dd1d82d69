"""A quantised checkpoint: its matrices, each in one piece or in parts, read into their canonical form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.products.weights import Codes, QuantisedWeight, Scheme
from octavo_worker.model.checkpoint.formats.base import Held, Matrix, Reader
from octavo_worker.model.checkpoint.formats.cuts import cut_weight, in_order, tensor_cuts
from octavo_worker.model.checkpoint.formats.dense import DenseFormat
from octavo_worker.model.checkpoint.header import KINDS, Place
from octavo_worker.model.checkpoint.source import Cut
from octavo_worker.model.errors import CheckpointError, UnsupportedModel
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.parts import Parts
from octavo_worker.model.layers.quantised import Quantised

T = TypeVar("T")
SCALES = (torch.float32, torch.float16, torch.bfloat16)
HEAD = "lm_head"
"""The only matrix outside the layers: most methods leave it as it is."""
UNUSED = ("input_scale", "input_zero_point", "input_global_scale", "input_scale_ub", "activation_scale")
"""Scales of activations that the checkpoint's authors measured: octavo measures each token's."""


@dataclass(frozen=True, slots=True)
class Part:
    """A matrix `[rows, depth]` of a checkpoint and the tensors `name.*` that are `found` for it. If it is a rank's part
    of such a matrix, `of` are the rows and the depth of that."""

    name: str
    rows: int
    depth: int
    found: Mapping[str, Place]
    of: tuple[int, int] | None = None

    @property
    def whole(self) -> tuple[int, int]:
        return self.of or (self.rows, self.depth)


class Wanted(NamedTuple):
    """A tensor that a form of storage has: in one of these shapes and of one of these types. `axes` are what its
    dimensions go along, "rows" or "depth", and how many of those an element stands for. Without axes it is of the
    matrix as a whole; "groups" are those of all columns, which make sense together only."""

    shapes: Sequence[tuple[int, ...]]
    dtypes: Sequence[torch.dtype]
    axes: Mapping[str, int] = MappingProxyType({})


class Stored(Protocol):
    """A part in one of the forms of a format."""

    @property
    def scheme(self) -> Scheme:
        """Scheme of the canonical form."""
        ...

    @property
    def wanted(self) -> Mapping[str, Wanted]:
        """Its tensors by what follows the part's name."""
        ...

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        """The canonical form. Takes the tensors over: they may be changed, and dropped as soon as they were used."""
        ...


class Method(Protocol):
    """A checkpoint's config, as far as it describes quantised matrices."""

    def stored(self, part: Part) -> Stored | None:
        """How a part is stored, by its headers; None: in floating point. Raises `ModelError` where they and the config
        disagree."""
        ...

    def scheme(self, name: str, depth: int) -> Scheme | None:
        """Scheme of a matrix by the config alone, for weights that are drawn; None: it is not quantised."""
        ...


class QuantisedFormat:
    """Parts of one scheme become one weight. Others stay apart, as do parts with another order of their columns."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def linear(self, matrix: Matrix, reader: Reader) -> Linear:
        matrix = _held_parts(matrix, reader)
        pairs = zip(matrix.names, matrix.rows, strict=True)
        parts = [Part(name, rows, matrix.depth, reader.source.under(name)) for name, rows in pairs]
        forms = [self.method.stored(part) for part in parts]
        if not any(forms):
            return DenseFormat().linear(matrix, reader)
        check_shape(matrix)
        if len(parts) > 1 and not all(forms):
            return Parts([self.linear(part, reader) for part in matrix.parts], matrix.held_rows)
        stored = [(part, form) for part, form in zip(parts, forms, strict=True) if form]
        taken = [self._taken(*each, held.cut) for each, held in zip(stored, matrix.parts, strict=True)]
        weights = canonical(taken, reader)
        if all(_alike(weights[0], weight) for weight in weights):
            return _quantised(stack(weights), matrix, parts, reader)
        apart = [
            _quantised(*each, reader) for each in zip(weights, matrix.parts, [[part] for part in parts], strict=True)
        ]
        return Parts(apart, matrix.held_rows)

    def _taken(self, part: Part, form: Stored, cut: Cut | None) -> Taken:
        """A cut is read where it begins and ends with elements of all tensors; else it is made of the whole matrix."""
        places = check_headers(part, form)
        if cut is None:
            return Taken(part, form, places)
        cuts = tensor_cuts({ending: (places[ending], form.wanted[ending].axes) for ending in places}, cut)
        own = None if cuts is None else self.method.stored(cut_part(part, cut))
        return Taken(part, form, places, left=cut) if cuts is None or own is None else Taken(part, own, places, cuts)


def _held_parts(matrix: Matrix, reader: Reader) -> Matrix:
    """The matrix without parts of which a rank has no row."""
    if all(matrix.held_rows):
        return matrix
    assert matrix.held is not None
    for name, rows in zip(matrix.names, matrix.held_rows, strict=True):
        for ending in () if rows else reader.source.under(name):
            reader.source.skip(f"{name}.{ending}")

    def kept(parts: Sequence[T]) -> list[T]:
        return [part for part, rows in zip(parts, matrix.held_rows, strict=True) if rows]

    held = Held(kept(matrix.held.rows), matrix.held.depth)
    orders = kept(matrix.orders) if matrix.orders else ()
    return replace(matrix, names=kept(matrix.names), rows=kept(matrix.rows), held=held, orders=orders)


def check_shape(matrix: Matrix) -> None:
    """Raises `UnsupportedModel` for a matrix that has no quantised form."""
    if matrix.transposed or matrix.depth % 2:
        reason = "its family stores matrices the other way round" if matrix.transposed else "its depth is odd"
        raise UnsupportedModel(
            f"{matrix.names[0]} is quantised, but {reason}, which is not loaded; give the checkpoint in 16 bits."
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """A part as it is read, in which form: of each tensor its cut, or all of it; `left` is to be cut out of the
    canonical form."""

    part: Part
    form: Stored
    places: Mapping[str, Place]
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    left: Cut | None = None

    def read(self, reader: Reader) -> dict[str, Tensor]:
        raw = {}
        for ending, place in self.places.items():
            raw[ending] = reader.raw(f"{self.part.name}.{ending}", place, self.cuts.get(ending))
        for ending in UNUSED:
            reader.source.skip(f"{self.part.name}.{ending}")
        return raw


def cut_part(part: Part, cut: Cut) -> Part:
    return Part(part.name, sum(map(len, cut.rows)), len(cut.columns), part.found, (part.rows, part.depth))


def canonical(parts: Sequence[Taken], reader: Reader) -> list[QuantisedWeight]:
    """The canonical form of each part."""
    raw = [part.read(reader) for part in parts]
    reader.source.wait()
    weights = []
    for taken, tensors in zip(parts, raw, strict=True):
        weight = cut_weight(taken.part.name, taken.form.weight(tensors), taken.left)
        weights.append(replace(weight, zeros=None) if _is_symmetric(weight) else weight)
    return weights


def stack(weights: Sequence[QuantisedWeight]) -> QuantisedWeight:
    """Weights of one scheme and one order, their rows one after the other."""
    first = weights[0]
    if len(weights) == 1:
        return first
    zeros = None
    if any(weight.zeros is not None for weight in weights):
        zeros = torch.cat([_middles(weight) if weight.zeros is None else weight.zeros for weight in weights], dim=1)
    codes = torch.cat([weight.codes.view(torch.uint8) for weight in weights]).view(first.codes.dtype)
    return QuantisedWeight(first.scheme, codes, torch.cat([w.scales for w in weights], dim=1), zeros, first.order)


def _middles(weight: QuantisedWeight) -> Tensor:
    """The zero points of a symmetric weight."""
    middle = 8 if weight.scheme.codes is Codes.INT4 else 0
    return torch.full_like(weight.scales, middle, dtype=weight.codes.dtype)


def _is_symmetric(weight: QuantisedWeight) -> bool:
    """True if its zero points are those of a symmetric weight."""
    return weight.zeros is not None and torch.equal(weight.zeros, _middles(weight))


def _alike(a: QuantisedWeight, b: QuantisedWeight) -> bool:
    if a.scheme != b.scheme:
        return False
    return a.order is b.order or (a.order is not None and b.order is not None and torch.equal(a.order, b.order))


def _quantised(weight: QuantisedWeight, matrix: Matrix, parts: Sequence[Part], reader: Reader) -> Quantised:
    bias = reader.bias(matrix) if matrix.biased else None
    if not matrix.biased:
        _skip_zero_bias(parts, reader)
    weight = in_order(weight, matrix.row_order(reader.device))
    try:
        return Quantised(ops.pack(weight), bias, reader.products, reader.dtype)
    except ValueError as error:
        name = parts[0].name
        raise UnsupportedModel(f"no kernel computes with {name}: {error}; give another checkpoint.") from error


def _skip_zero_bias(parts: Sequence[Part], reader: Reader) -> None:
    """Old tools write a bias of zeros for every matrix."""
    for part in parts:
        if "bias" not in part.found:
            continue
        bias = reader.read(f"{part.name}.bias", part.rows)
        reader.source.wait()
        if bias.any():
            raise CheckpointError(f"tensor '{part.name}.bias' is not zero, but config.json has no place for it.")


def check_headers(part: Part, form: Stored) -> dict[str, Place]:
    """Where the tensors of a part lie, by what follows its name. Raises `CheckpointError`, naming the tensor, for one
    that is missing or has another shape or type."""
    places = {}
    for ending, wanted in form.wanted.items():
        name, place = f"{part.name}.{ending}", part.found.get(ending)
        if place is None:
            raise CheckpointError(f"tensor {name!r} is missing: {part.name} is quantised, and cannot do without it.")
        if place.dtype not in wanted.dtypes:
            kinds = " or ".join(KINDS[dtype] for dtype in wanted.dtypes)
            raise CheckpointError(f"tensor {name!r} is stored as {place.kind}, but the quantisation asks for {kinds}.")
        if place.shape not in wanted.shapes:
            shapes = " or ".join(str(shape) for shape in wanted.shapes)
            raise CheckpointError(f"tensor {name!r} has shape {place.shape}, but the config makes it {shapes}.")
        places[ending] = place
    return places
