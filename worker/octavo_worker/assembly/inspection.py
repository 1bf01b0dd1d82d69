"""Inspection of a checkpoint by its config and headers, before any weight is read: the form of each product, its
kernel, and the bytes that a token costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.experts.coded import as_read as as_experts
from octavo_kernels.ops import Routing
from octavo_kernels.products.naming import way_of
from octavo_kernels.products.weights import PER_BYTE, Activations, Codes, Scheme
from octavo_worker.assembly.choices import Choices, choose
from octavo_worker.assembly.read_rate import read_rate
from octavo_worker.contract.cache import KvLayout, group_window, in_group
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.checkpoint.build import build_layers
from octavo_worker.model.checkpoint.formats import Format, Matrix, OnlineFormat, QuantisedFormat, Reader
from octavo_worker.model.checkpoint.formats.dense import DenseFormat
from octavo_worker.model.checkpoint.formats.stored import UNUSED, Method, Part, Stored, check_headers, check_shape
from octavo_worker.model.checkpoint.header import Place
from octavo_worker.model.checkpoint.source import Checkpoint, Cut
from octavo_worker.model.config_file import FileConfig
from octavo_worker.model.decoder import DecoderLayers
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.linear import Dense, Linear, Products
from octavo_worker.model.layers.mixture import EXPERTS_DOWN, EXPERTS_GATE_UP, ROUTER, SHARED_GATE_UP, ExpertMlp
from octavo_worker.model.layers.mlp import GATE_UP
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.layers.quantised import form_of
from octavo_worker.model.transfer import dtype_name

CACHED = 256 << 20
"""Bytes that the caches of a CPU may hold: what is smaller may be read faster than memory gives it."""

EXPERTS = (EXPERTS_GATE_UP, EXPERTS_DOWN)
GATED = (GATE_UP, EXPERTS_GATE_UP, SHARED_GATE_UP)

CODES = {Codes.INT4: "int4", Codes.INT8: "int8", Codes.FP4: "fp4 (e2m1)", Codes.FP8: "fp8 (e4m3)"}


@dataclass(frozen=True, slots=True)
class Product:
    """A kind of product in `layers` of the layers: how its weights are stored, which kernel computes it for a single
    sequence, and the bytes of those weights that one token reads: of some experts only. `dequantises`: no kernel reads
    the codes themselves."""

    name: str
    layers: int
    form: str
    kernel: str
    dequantises: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """`quantization` is what a worker would call it. `products` None: the model runs on its transformers code, whose
    products are not known. `nbytes` are those of all weights that a step of one token reads; `read_rate` (bytes a
    second) and `most_tokens_per_s` of a single sequence are None where memory is not what bounds it, or is not known.
    `advice` is on what the config seems to lack. `kept_bytes` are those of keys and values of a token, without the
    `window_bytes` of layers that keep the last `window` tokens in a group of blocks of their own (0: there is none)."""

    device: str
    dtype: str
    quantization: str
    products: Sequence[Product] | None
    nbytes: int | None = None
    read_rate: float | None = None
    most_tokens_per_s: float | None = None
    advice: str = ""
    kept_bytes: int = 0
    window_bytes: int = 0
    window: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect(options: ModelOptions) -> Inspection:
    """Raises `ModelError` as loading does, for all that can be seen without the weights."""
    chosen = choose(options)
    device, name = chosen.device, str(chosen.dtype).removeprefix("torch.")
    shown = f"cpu ({ops.cpu_level()})" if device.type == "cpu" else torch.cuda.get_device_name(device)
    if chosen.described is None:
        check_route(options, chosen)
        return Inspection(shown, name, "", None, advice=chosen.advice)
    is_drawn = options.load_format == "dummy"
    source = Undrawn() if is_drawn else Headers.open(chosen.folder)
    reader = Reader(source, chosen.dtype, torch.device("meta"), Products())
    layers = build_layers(chosen.described, reader, OutlineFormat(chosen.form, is_drawn))
    products = _products(layers, chosen.dtype, device)
    quantization = " + ".join(sorted(frozenset[str]().union(*(linear.forms for linear in layers.linears))))
    nbytes = sum(product.nbytes for product in products)
    kept = _kept(layers, chosen.dtype, ops.KV_DTYPES.get(options.kv_dtype, chosen.dtype))
    if device.type == "cpu" and nbytes < CACHED:
        return Inspection(shown, name, quantization, products, nbytes, None, None, chosen.advice, *kept)
    rate = read_rate(device)
    return Inspection(shown, name, quantization, products, nbytes, rate, rate / nbytes, chosen.advice, *kept)


def _kept(layers: DecoderLayers, dtype: torch.dtype, kv_dtype: torch.dtype) -> tuple[int, int, int]:
    """Bytes of a token in each group of blocks, in a cache of the type `kv_dtype`, and the window of the second."""
    specs, name = [block.attention.kept(dtype) for block in layers.blocks], dtype_name(kv_dtype)
    window = group_window(specs)
    if not window:
        return KvLayout.of(specs, 1, name).block_bytes, 0, 0
    full, windowed = (KvLayout.of(in_group(specs, windowed=each), 1, name).block_bytes for each in (False, True))
    return full, windowed, window


def check_route(options: ModelOptions, chosen: Choices) -> None:
    """Raises `ModelError` for files that do not fit a model on the transformers route."""
    if options.load_format == "dummy":
        return
    from octavo_worker.model.transformers_route import check_files  # brings transformers, which takes seconds

    assert not isinstance(chosen.config, FileConfig)  # which is of one of the decoder's families
    check_files(chosen.folder, chosen.config, chosen.dtype)


class Headers(Checkpoint):
    """A checkpoint of which the headers are read only."""

    def read(self, name: str, target: Tensor, transposed: bool = False, cut: Cut | None = None) -> None:
        self._check(name, target, transposed, cut)
        self.unread.discard(name)


class Undrawn:
    """The source of random weights, none of which is drawn."""

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        return candidates[0]

    def under(self, name: str) -> Mapping[str, Place]:
        return {}

    def join(self, name: str, turned: bool) -> Mapping[str, Place]:
        return {}

    def read(self, name: str, target: Tensor, transposed: bool = False, cut: Cut | None = None) -> None:
        pass

    def skip(self, name: str) -> None:
        pass

    def wait(self) -> None:
        pass

    def finish(self, has_no_use: Callable[[str], bool]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of a matrix that are stored alike. `scheme` None: in floating point."""

    rows: int
    depth: int
    scheme: Scheme | None
    zeros: bool = False


@dataclass(frozen=True, slots=True)
class Outline(Linear):
    """A layer without its weights: shapes and forms."""

    stretches: tuple[Stretch, ...]
    dtype: torch.dtype  # of what is in floating point

    @property
    def forms(self) -> frozenset[str]:
        return frozenset(form_of(part.scheme, part.depth) for part in self.stretches if part.scheme is not None)

    @property
    def is_mixed(self) -> bool:
        return len(self.stretches) > 1

    @property
    def nbytes(self) -> int:
        return sum(_bytes_of(stretch, self.dtype.itemsize) for stretch in self.stretches)

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        raise NotImplementedError("an outline has no weights")


class OutlineFormat:
    """Goes through a checkpoint as `form` does, and checks its headers as that does, unless its weights are drawn."""

    def __init__(self, form: Format, is_drawn: bool = False) -> None:
        self._form, self._is_drawn = form, is_drawn

    def linear(self, matrix: Matrix, reader: Reader) -> Linear:
        stretches = self._stretches(matrix, reader)
        merged = Counter[tuple[Scheme | None, bool]]()
        for stretch in stretches:
            merged[stretch.scheme, stretch.zeros] += stretch.rows
        alike = (Stretch(rows, matrix.depth, scheme, zeros) for (scheme, zeros), rows in merged.items())
        return Outline(tuple(alike), reader.dtype)

    def _stretches(self, matrix: Matrix, reader: Reader) -> list[Stretch]:
        if isinstance(self._form, QuantisedFormat) and self._is_drawn:
            schemes = [self._form.method.scheme(name, matrix.depth) for name in matrix.names]
            if any(schemes):
                check_shape(matrix)
            return [Stretch(rows, matrix.depth, scheme) for rows, scheme in zip(matrix.held_rows, schemes, strict=True)]
        if isinstance(self._form, QuantisedFormat):
            return self._stored(self._form.method, matrix, reader)
        DenseFormat().linear(matrix, reader)
        rows = sum(matrix.held_rows)
        scheme = self._form.scheme(matrix) if isinstance(self._form, OnlineFormat) else None
        return [Stretch(rows, matrix.depth, scheme, scheme is not None and scheme.codes is Codes.INT4)]

    def _stored(self, method: Method, matrix: Matrix, reader: Reader) -> list[Stretch]:
        pairs = zip(matrix.names, matrix.rows, strict=True)
        parts = [Part(name, rows, matrix.depth, reader.source.under(name)) for name, rows in pairs]
        forms = [method.stored(part) for part in parts]
        if any(forms):
            check_shape(matrix)
        return [_stretch(*each, reader) for each in zip(parts, forms, matrix.parts, strict=True)]


def _stretch(part: Part, stored: Stored | None, matrix: Matrix, reader: Reader) -> Stretch:
    if stored is None:
        DenseFormat().linear(matrix, reader)
        return Stretch(sum(matrix.held_rows), part.depth, None)
    places = check_headers(part, stored)
    if matrix.biased:
        reader.bias(matrix)
    for ending in (*places, *UNUSED, "bias"):
        reader.source.skip(f"{part.name}.{ending}")
    return Stretch(sum(matrix.held_rows), part.depth, stored.scheme, any("zero" in ending for ending in places))


def _products(layers: DecoderLayers, dtype: torch.dtype, device: torch.device) -> list[Product]:
    kinds = [
        (name, _outline(linear), _routing(name, block))
        for block in layers.blocks
        for name, linear in block.products().items()
    ]
    if layers.inputs is not None:
        kinds.append(("inputs of layers", _outline(layers.inputs.product), None))
    products = []
    counted = Counter([*kinds, ("head", _outline(layers.head), None)])
    for name in dict.fromkeys(name for name, _, _ in counted):
        for (kind, outline, routing), count in counted.items():
            if kind != name:
                continue
            gated = name in GATED
            read = as_read(outline, name, device, 1 if routing is None else routing.experts)
            ways = [way_of(s.rows, s.depth, dtype, device, s.scheme, gated=gated) for s in read.stretches]
            form = "; ".join(describe(stretch, outline.dtype) for stretch in outline.stretches)
            form += "" if read == outline else f", read as {describe(read.stretches[0], read.dtype)}"
            nbytes = count * read.nbytes
            if routing is not None:
                form += f"; {routing.chosen} of {routing.experts} experts" + f" by {routing.score}" * (name == ROUTER)
                nbytes = nbytes if name == ROUTER else nbytes * routing.chosen // routing.experts
            kernels = "; ".join(dict.fromkeys(way.kernel for way in ways))
            products.append(Product(name, count, form, kernels, any(way.dequantises for way in ways), nbytes))
    return products


def as_read(outline: Outline, name: str, device: torch.device, experts: int = 1) -> Outline:
    """A product's weights as a step reads them: codes of `experts` meet rows in 16 bits on a GPU, or are copied while
    they load if no kernel reads them."""
    if device.type != "cuda" or name not in EXPERTS or not outline.forms:
        return outline
    rows, (first, *_) = sum(stretch.rows for stretch in outline.stretches), outline.stretches
    halves = 2 if name in GATED else 1
    scheme = first.scheme
    is_read = scheme is not None and ops.takes_experts(scheme, rows // experts, first.depth, device, halves=halves)
    if scheme is None or not is_read:
        return Outline((Stretch(rows, first.depth, None),), outline.dtype)
    return Outline((replace(first, rows=rows, scheme=as_experts(scheme)),), outline.dtype)


def _routing(product: str, block: Block) -> Routing | None:
    """The routing that says which part of a product's weights a token reads; None: all of them."""
    if product not in (ROUTER, *EXPERTS) or not isinstance(block.mlp, ExpertMlp):
        return None
    return block.mlp.mixture.router.routing


def _outline(linear: Linear) -> Outline:
    if isinstance(linear, Outline):
        return linear
    assert isinstance(linear, Dense)  # the embedding's table
    rows, depth = linear.weight.shape
    return Outline((Stretch(rows, depth, None),), linear.weight.dtype)


def _bytes_of(stretch: Stretch, itemsize: int) -> int:
    rows, depth, scheme = stretch.rows, stretch.depth, stretch.scheme
    if scheme is None:
        return rows * depth * itemsize
    groups = -(-depth // scheme.group)
    return rows * (depth // PER_BYTE[scheme.codes] + groups * (4 + int(stretch.zeros)))


def describe(stretch: Stretch, dtype: torch.dtype) -> str:
    """Such as `int4, groups of 128, zero points`."""
    scheme = stretch.scheme
    if scheme is None:
        return str(dtype).removeprefix("torch.")
    parts = [CODES[scheme.codes]]
    parts.append(f"groups of {scheme.group}" if scheme.group < stretch.depth else "a scale a row")
    if stretch.zeros:
        parts.append("zero points")
    if scheme.activations is not Activations.AS_GIVEN:
        grouped = 0 < scheme.activation_group < stretch.depth
        size = f" in groups of {scheme.activation_group}" if grouped else ""
        parts.append(f"activations {scheme.activations.name.lower()}{size}")
    return ", ".join(parts)
