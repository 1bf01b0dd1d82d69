"""Products of codes of eight bits with such codes, on CUDA: what becomes of a batch's rows, and the launches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.operands import DTYPES, RmsNorm, address, norm_at, rows_at
from octavo_kernels.products import choice
from octavo_kernels.products.choice import Form, W8A8Kernel, W8A8Launch
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import Activations, Codes, PackedWeight, Scheme

BLOCK = 128  # of the depth, what a scale is for where there are several for a row
WIDEST = {4: 16384, 2: 32768}  # bytes of an element: elements of a row that one block of threads holds
CELLS = {Activations.INT8: 1, Activations.FP8: 2}
DTYPE_OF = {Activations.INT8: torch.int8, Activations.FP8: torch.float8_e4m3fn}


class CodedRows(NamedTuple):
    """`codes[T, depth]` and their float32 `scales[groups, T]`, whose groups begin at multiples of 16 bytes."""

    codes: Tensor
    scales: Tensor

    def operand(self) -> tuple[int, int, int, int]:
        """A single group's distance to the next one may be anything to torch, but not to a tensor map."""
        groups, rows = self.scales.shape
        apart = self.scales.stride(0) if groups > 1 else -(-rows // 4) * 4
        return self.codes.data_ptr(), self.codes.stride(0), self.scales.data_ptr(), apart


def quantise(x: Tensor, kind: Activations, group: int = 0, norm: RmsNorm | None = None) -> CodedRows:
    """The rows of `x[T, depth]`, or their RMS norm in the type of x, as codes by `reference.quantise`. `group`: 0, or
    `BLOCK` for a scale for each so many of the depth. One launch, which begins no other row's scale with a row.

    A row with a value that is not finite has a scale that is NaN. Raises `ValueError` for a depth that is no multiple
    of 16, or for too long rows.
    """
    rows, depth = x.shape
    if depth % 16 or depth > WIDEST[x.dtype.itemsize]:
        raise ValueError(f"x must have a multiple of 16 columns, {WIDEST[x.dtype.itemsize]} at most, not {depth}")
    groups = -(-depth // BLOCK) if group else 1
    coded = CodedRows(
        torch.empty((rows, depth), dtype=DTYPE_OF[kind], device=x.device),
        torch.empty((groups, -(-rows // 4) * 4), dtype=torch.float32, device=x.device)[:, :rows],
    )
    cuda.run(
        "quantise_rows", x.device, DTYPES[x.dtype], CELLS[kind], bool(group), _rows(x), norm_at(norm),
        coded.operand(), rows, depth,
    )  # fmt: skip
    return coded


def form_of(weight: PackedWeight) -> Form | None:
    """None: kernels do not multiply such codes."""
    if weight.zeros is not None or weight.order is not None:
        return None
    return form_of_scheme(weight.scheme, weight.depth)


def form_of_scheme(scheme: Scheme, depth: int) -> Form | None:
    """Form of weights without zero points, in the order of x."""
    if depth % 16:
        return None
    per_row = scheme.group >= depth and scheme.activation_group in (0, depth)
    if (scheme.codes, scheme.activations) == (Codes.INT8, Activations.INT8):
        return Form.INT8 if per_row else None
    if (scheme.codes, scheme.activations) != (Codes.FP8, Activations.FP8):
        return None
    in_blocks = scheme.group == BLOCK and scheme.activation_group == BLOCK
    return Form.FP8 if per_row else Form.FP8_BLOCKS if in_blocks else None


def launch(p: Product[PackedWeight], out: Tensor, activation: int | None = None) -> bool:
    """Launches the product if a kernel is chosen for it. x becomes codes, with its norm, in a launch of its own, or, of
    one row, in the product's; all that follows the product is in its launch. Returns whether it did."""
    x, weight, norm = p.x, p.weight, p.norm
    form, gated = form_of(weight), activation is not None
    if form is None or cuda.compiled is None or x.dtype not in cuda.HALF or weight.depth > WIDEST[2]:
        return False
    if len(x) == 0 or weight.columns % (16 if gated else 8):
        return False
    norm_weight = None if norm is None else norm.weight
    if not _aligned(x, weight.codes, weight.scales, p.bias, p.residual, out, norm_weight):
        return False
    chip = cuda.chip(x.device)
    chosen = choice.choose_w8a8(len(x), weight.columns, weight.depth, form, chip, norm is not None, p.uniform)
    if chosen is None:
        return False
    gate, in_blocks = (gated, activation or 0), form is Form.FP8_BLOCKS
    if chosen.kernel is W8A8Kernel.ROW:
        return _multiply_row(p, out, gate, in_blocks)
    _multiply(p, out, gate, in_blocks, chosen)
    return True


def _multiply_row(p: Product[PackedWeight], out: Tensor, gate: tuple[bool, int], in_blocks: bool) -> bool:
    """Multiplies one row. True if there was room for it."""
    x, weight = p.x, p.weight
    return bool(
        cuda.run(
            "w8a8_row", x.device, DTYPES[x.dtype], CELLS[weight.scheme.activations], in_blocks, x.data_ptr(),
            norm_at(p.norm), CodedRows(weight.codes, weight.scales).operand(), address(p.bias),
            address(p.residual), out.data_ptr(), weight.columns, weight.depth, gate,
        )
    )  # fmt: skip


def _multiply(
    p: Product[PackedWeight], out: Tensor, gate: tuple[bool, int], in_blocks: bool, chosen: W8A8Launch
) -> None:
    x, weight, kind = p.x, p.weight, p.weight.scheme.activations
    coded = quantise(x, kind, BLOCK if in_blocks else 0, p.norm)
    cuda.run(
        "w8a8_linear", x.device, DTYPES[x.dtype], CELLS[kind], in_blocks, coded.operand(),
        CodedRows(weight.codes, weight.scales).operand(), address(p.bias), _rows(p.residual), _rows(out), len(x),
        weight.columns, weight.depth, gate, tuple(chosen),
    )  # fmt: skip


def _rows(tensor: Tensor | None) -> tuple[int, int]:
    """Address and distance of rows; that of a single row, which may be anything, is none."""
    return rows_at(tensor) if tensor is None or len(tensor) > 1 else (tensor.data_ptr(), 0)


def _aligned(*tensors: Tensor | None) -> bool:
    """True if all begin at multiples of 16 bytes, with each of their rows."""

    def fits(t: Tensor) -> bool:
        row: Any = t.stride(0) * t.element_size() if t.dim() > 1 and len(t) > 1 else 0
        return t.data_ptr() % 16 == 0 and row % 16 == 0

    return all(fits(t) for t in tensors if t is not None)
