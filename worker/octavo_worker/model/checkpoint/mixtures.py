"""Mixtures of experts from a checkpoint: matrices of all experts as one, whichever way they are stored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.experts.gpu import COUNTERS, MOST_CHOSEN, MOST_EXPERTS, MOST_GROUPS
from octavo_kernels.products.weights import dequantise
from octavo_worker.model.checkpoint.formats import DenseFormat, Format, Matrix, Reader
from octavo_worker.model.checkpoint.formats.base import Held
from octavo_worker.model.checkpoint.names import ExpertNames
from octavo_worker.model.config import DecoderConfig, MixtureMlp
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.layers.linear import Dense, Linear
from octavo_worker.model.layers.mixture import ExpertActivation, ExpertGate, Mixture, Router, SharedExpert
from octavo_worker.model.layers.norm import RmsNorm
from octavo_worker.model.layers.quantised import CodedExperts, Quantised
from octavo_worker.model.shards import Shards

log = logging.getLogger(__name__)

PANEL = 64
"""Rows of an expert's quantised matrix on a CPU are a multiple of that: kernels read so many together."""


UNIT = 8
"""Columns of an expert's matrix on a GPU are a multiple of that."""


class Stored(NamedTuple):
    """How a checkpoint stores a matrix of every expert: the names of its parts, its rows in each of them, and which of
    these stand where. A `joined` part is that of all experts."""

    parts: Sequence[str]
    rows: Sequence[int]
    order: Sequence[int] | None = None
    joined: bool = False


class MixtureReader:
    """Reads the mixtures of a model's layers. Raises `CheckpointError` or `UnsupportedModel`, naming a tensor."""

    def __init__(self, config: DecoderConfig, reader: Reader, form: Format, shards: Shards | None) -> None:
        self.config, self.reader, self.form, self.shards = config, reader, form, shards
        self.names: ExpertNames = config.names.experts[0]

    def read(self, at: str, mlp: MixtureMlp) -> Mixture:
        """The mixture of the layer whose names begin with `at`, or this rank's part of it."""
        known = self.config.names.experts
        self.names = next((names for names in known if self.reader.source.under(at + names.router)), known[0])
        up = self._experts(at, mlp, self._up(at, mlp), self.config.hidden_size, is_up=True)
        down = self._experts(at, mlp, self._down(at, mlp), mlp.width, is_up=False)
        owned = None
        if self.shards is not None and self.shards.has_whole_experts:
            owned = self.shards.experts(mlp.routing.experts)
        elif mlp.biased and not self._is_first:
            down = without_bias(down)
        return Mixture(
            router=self._router(at, mlp),
            up=up,
            down=down,
            gate=self._activation(mlp),
            shared=self._shared(at, mlp) if mlp.shared else None,
            owned=owned,
            norm=self._norm(at + self.names.norm) if mlp.beside else None,
        )

    def _activation(self, mlp: MixtureMlp) -> ExpertGate | ExpertActivation:
        if self.config.gated:
            return ExpertGate(self.config.gate, mlp.clamped)
        squared = self.config.activation == "relu2"
        return ExpertActivation("relu" if self.config.activation == "relu2" else self.config.activation, squared)

    def _norm(self, name: str) -> RmsNorm:
        c = self.config
        return RmsNorm(self.reader.read(f"{name}.weight", c.hidden_size), c.norm_eps, c.norm_offset)

    @property
    def _is_first(self) -> bool:
        return self.shards is None or self.shards.rank.index == 0

    def _up(self, at: str, mlp: MixtureMlp) -> Stored:
        names, width = self.names, mlp.width
        stacked, rows = at + names.stacked[0], (2 if self.config.gated else 1) * width
        if self._join(at, stacked, rows, self.config.hidden_size):
            halves = (*range(0, rows, 2), *range(1, rows, 2)) if names.alternating else None
            return Stored([stacked], [rows], halves, joined=True)
        return Stored([at + names.each + name for name in names.up], [width] * len(names.up))

    def _down(self, at: str, mlp: MixtureMlp) -> Stored:
        stacked, rows = at + self.names.stacked[1], [self.config.hidden_size]
        if self._join(at, stacked, rows[0], mlp.width):
            return Stored([stacked], rows, joined=True)
        return Stored([at + self.names.each + self.names.down], rows)

    def _join(self, at: str, name: str, rows: int, depth: int) -> bool:
        """Joins the experts of a stack, which may be stored `[depth, rows]`; codes never are. False: experts stand
        alone, or are drawn as if they did."""
        source = self.reader.source
        if source.under(f"{at}{self.names.each.format(0)}{self.names.down}"):
            return False
        module, _, ending = name.rpartition(".")
        place = source.under(name).get("weight") or source.under(module).get(ending)
        turned = place is not None and (self.names.transposed if rows == depth else place.shape[1:] == (depth, rows))
        return not source.join(name, turned).keys().isdisjoint({"weight", "blocks", "scales"})

    def _experts(self, at: str, mlp: MixtureMlp, stored: Stored, depth: int, *, is_up: bool) -> Linear:
        """The matrices of all experts, or of those that this rank has, one below the other."""
        count = mlp.routing.experts
        apart, together = (1, count) if stored.joined else (count, 1)
        names = [part.format(expert) for expert in range(apart) for part in stored.parts]
        held, order = None, stored.order
        owned = range(count) if self.shards is None else self.shards.experts(count)
        if self.shards is not None:
            one = self._held(mlp, stored, self.shards, is_up=is_up)
            none = [[range(0)]] * len(one.rows)
            ranges = [each for expert in range(count) for each in (one.rows if expert in owned else none)]
            held = Held([_below(ranges, stored.rows[0])] if stored.joined else ranges, one.depth)
            if order is not None:
                rows = sum(map(len, one.rows[0]))
                order = (*range(0, rows, 2), *range(1, rows, 2))
        orders = () if order is None else (order,) * apart
        rows_of = [rows * together for rows in stored.rows] * apart
        matrix = Matrix(names, rows_of, depth, mlp.biased, held=held, orders=orders)
        linear = self.form.linear(matrix, self.reader)
        rows, is_on_gpu = sum(matrix.held_rows) // len(owned), self.reader.device.type == "cuda"
        self._check(linear, names[0], None if is_on_gpu else rows)
        return for_gpu(linear, names[0], rows, halves=2 if is_up and self.config.gated else 1) if is_on_gpu else linear

    def _held(self, mlp: MixtureMlp, stored: Stored, shards: Shards, *, is_up: bool) -> Held:
        """A rank's share of an expert that it has."""
        if shards.has_whole_experts:
            return Held([[range(rows)] for rows in stored.rows], range(self.config.hidden_size if is_up else mlp.width))
        if not is_up:
            return shards.down(mlp.width)
        return shards.up(mlp.width, len(stored.parts)) if stored.order is None else shards.alternating_up(mlp.width)

    def _check(self, linear: Linear, name: str, rows: int | None) -> None:
        """`rows` of an expert are None on a GPU."""
        if linear.is_mixed:
            raise UnsupportedModel(
                f"experts of a layer are stored in unlike forms, or with their columns in unlike orders ({name} and "
                "others), but one product has all of them; give the checkpoint in 16 bits."
            )
        if linear.forms and rows is not None and rows % PANEL:
            raise UnsupportedModel(
                f"{name} is quantised, and {rows} rows of an expert here are not whole panels of {PANEL}; give the "
                "checkpoint in 16 bits without --quantization, --experts whole, or fewer ranks (--tensor-parallel)."
            )

    def _router(self, at: str, mlp: MixtureMlp) -> Router:
        """In float32 on every rank."""
        count, name = mlp.routing.experts, at + self.names.router
        matrix = Matrix([name], [count], self.config.hidden_size, mlp.router_bias)
        correction = self._correction(at, count) if mlp.corrected else None
        logits = self._in_float32(matrix)
        norm, factors = self._scaled_norm(at, count) if mlp.beside else (None, None)  # waits for the product, too
        router = Router(logits, mlp.routing, correction, self._counters(mlp), norm, factors)
        return router if router.counters is None else router.folded(self.reader.dtype)

    def _scaled_norm(self, at: str, count: int) -> tuple[RmsNorm, Tensor]:
        """The norm of the router's rows, whose weight has the scale of its columns and the factor of all in it, and the
        factors of the experts' weights."""
        c, source, device = self.config, self.reader.source, self.reader.device
        scale = torch.empty(c.hidden_size, dtype=torch.float32, device=device)
        factors = torch.empty(count, dtype=torch.float32, device=device)
        source.read(at + self.names.scale, scale)
        source.read(at + self.names.factors, factors)
        source.wait()
        return RmsNorm(scale.mul_(c.hidden_size**-0.5), c.norm_eps, 0.0), factors

    def _in_float32(self, matrix: Matrix) -> Dense:
        linear = DenseFormat().linear(matrix, replace(self.reader, dtype=torch.float32))
        assert isinstance(linear, Dense)
        return linear

    def _counters(self, mlp: MixtureMlp) -> Tensor | None:
        """Counters of routing on a GPU."""
        if self.reader.device.type != "cuda":
            return None
        experts, chosen, groups = mlp.routing.experts, mlp.routing.chosen, mlp.routing.groups
        if experts > MOST_EXPERTS or chosen > MOST_CHOSEN or groups > MOST_GROUPS:
            raise UnsupportedModel(
                f"kernels of experts on a GPU choose at most {MOST_CHOSEN} of {MOST_EXPERTS} in {MOST_GROUPS} groups, "
                f"not {chosen} of {experts} in {groups}; give --device cpu."
            )
        return torch.zeros(COUNTERS, dtype=torch.int32, device=self.reader.device)

    def _correction(self, at: str, count: int) -> Tensor:
        name = at + self.names.correction
        module, _, ending = name.rpartition(".")
        place = self.reader.source.under(module).get(ending)
        shape = (1, count) if place is not None and len(place.shape) == 2 else (count,)
        correction = torch.empty(shape, dtype=torch.float32, device=self.reader.device)
        self.reader.source.read(name, correction)
        return correction.flatten()

    def _shared(self, at: str, mlp: MixtureMlp) -> SharedExpert:
        c, names, parts = self.config, self.names, len(self.names.shared_up)
        rows = [mlp.shared] * parts if parts == 2 or not c.gated else [2 * mlp.shared]
        held = self.shards and self.shards.up(mlp.shared, parts)
        up = Matrix([at + name for name in names.shared_up], rows, c.hidden_size, c.mlp_bias, held=held)
        held = self.shards and self.shards.down(mlp.shared)
        down = Matrix([at + names.shared_down], [c.hidden_size], mlp.shared, c.mlp_bias, held=held)
        last = self.form.linear(down, self.reader)
        if c.mlp_bias and not self._is_first:
            last = without_bias(last)
        gate = None
        if mlp.shared_gated:
            matrix = Matrix([at + names.shared_gate], [1], c.hidden_size)
            gate = self._in_float32(matrix)
        width = mlp.shared if held is None else len(held.depth)
        return SharedExpert(self.form.linear(up, self.reader), last, width, gate)


def _below(ranges: Sequence[Sequence[range]], rows: int) -> list[range]:
    """Ranges of equal matrices of so many rows in one that has them below each other."""
    return [range(at * rows + r.start, at * rows + r.stop) for at, each in enumerate(ranges) for r in each if len(r)]


def without_bias(linear: Linear) -> Linear:
    """A last product of a rank other than the first: the sum over ranks has its bias once."""
    return replace(linear, bias=None) if isinstance(linear, Dense | Quantised | CodedExperts) else linear


def for_gpu(linear: Linear, name: str, rows: int, *, halves: int) -> Dense | CodedExperts:
    """Experts' matrices for a GPU, of `rows` each in so many `halves`: as codes where its kernels read them, else in 16
    bits; `name` is that of the first. Raises `UnsupportedModel`."""
    if isinstance(linear, Quantised):
        weight = linear.weight
        if ops.takes_experts(weight.scheme, rows, weight.depth, weight.codes.device, halves=halves):
            return CodedExperts(ops.pack_experts(weight), linear.bias)
        log.info("%s and others become 16 bits: no kernel reads the codes of such experts", name)
    return in_16_bits(linear, name)


def in_16_bits(linear: Linear, name: str) -> Dense:
    """Experts' matrices for kernels that take no such codes. Raises `UnsupportedModel`."""
    if isinstance(linear, Quantised):
        coded = ops.takes_copy(linear.weight)
        weight = ops.copy_of(linear.weight, linear.dtype) if coded else dequantise(linear.weight).to(linear.dtype)
        linear = Dense(weight, linear.bias, linear.products, linear.forms)
    assert isinstance(linear, Dense)
    if linear.weight.shape[1] % UNIT:
        raise UnsupportedModel(
            f"{name} has {linear.weight.shape[1]} columns here, and kernels of experts on a GPU take multiples of "
            f"{UNIT}; give --experts whole, fewer ranks (--tensor-parallel), or --device cpu."
        )
    return linear
