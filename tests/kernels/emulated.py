"""The kernels for weights of codes as functions on the CPU: their own source, compiled for the host (emulator/)."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels.operands import DTYPES, RmsNorm
from octavo_kernels.products.activation import code_of
from octavo_kernels.products.coded import CodedWeight

SOURCES = Path(__file__).parents[2] / "kernels" / "csrc"
EMULATOR = Path(__file__).parent / "emulator"
SHARED = re.compile(r"extern __shared__ .*char (\w+)\[\];")
STATIC_SHARED = re.compile(r"\b__shared__ ")  # one for all threads of a block: blocks run one after the other
NUMBERS = ("dtype", "kind", "group", "columns", "depth", "rows", "gated", "activation")
ADDRESSES = ("codes", "scales", "zeros", "x", "bias", "residual", "norm", "out")


class Operands(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in NUMBERS), *((name, ctypes.c_void_p) for name in ADDRESSES),
        *((name, ctypes.c_int64) for name in ("x_stride", "residual_stride", "out_stride")),
        ("eps", ctypes.c_float), ("offset", ctypes.c_float),
    )  # fmt: skip


def build(
    folder: Path, kernels: str = "coded", entry: str = "entry.cpp", *flags: str, sources: str = "*.cu",
    edited: Callable[[str], str] = str,
) -> ctypes.CDLL:  # fmt: skip
    """Compiles what runs on the host; raises `RuntimeError` with what the compiler says. `kernels`: their folder, of
    which `sources` are compiled, `edited` before."""
    (folder / kernels).mkdir()
    for source in (SOURCES / "cuda" / kernels).iterdir():
        text = SHARED.sub(r"char* const \1 = emulator::current->block->shared;", edited(source.read_text()))
        (folder / kernels / source.name).write_text(STATIC_SHARED.sub("static EMULATED ", text))
    include = [f"-I{path}" for path in (EMULATOR, folder, SOURCES / "cuda", SOURCES)]
    # Several such libraries in one process have nothing in common. What is not aligned ends the process, as it ends a
    # GPU's context.
    host = "-fPIC,-w,-fno-gnu-unique,-fsanitize=alignment,-fsanitize-undefined-trap-on-error"
    flags = ("-std=c++17", "-O1", f"-Xcompiler={host}", "-DOCTAVO_HOPPER=1", *flags, *include, "-x", "c++", "-c")
    objects = []
    for source in [EMULATOR / entry, *sorted((folder / kernels).glob(sources))]:
        objects.append(f"{source.stem}.o")
        _run(["nvcc", *flags, str(source), "-o", objects[-1]], folder)
    _run(["nvcc", "-shared", "-o", "emulated.so", *objects], folder)
    return ctypes.CDLL(str(folder / "emulated.so"))


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


def aligned(t: Tensor) -> Tensor:
    """A copy that begins at a multiple of 64 bytes."""
    memory = torch.zeros(t.nbytes + 64, dtype=torch.uint8)
    at = -memory.data_ptr() % 64
    return memory[at : at + t.nbytes].view(t.dtype).view(t.shape).copy_(t)


class Emulated:
    """`seed` decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        self._library = build(folder)

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self._library.set_up(multiprocessors, seed)

    def few(self, x: Tensor, weight: CodedWeight, **options: object) -> Tensor:
        return self._product("few", (), x, weight, **options)

    def tiles(self, x: Tensor, weight: CodedWeight, tokens: int, cluster: int, **options: object) -> Tensor:
        return self._product("tiles", (tokens, cluster), x, weight, **options)

    def wide(
        self, x: Tensor, weight: CodedWeight, consumers: int, tokens: int, cluster: int, **options: object
    ) -> Tensor:
        return self._product("wide", (consumers, tokens, cluster), x, weight, **options)

    def dequantise(self, weight: CodedWeight, dtype: torch.dtype) -> Tensor:
        out = aligned(torch.full((weight.columns, weight.depth), float("nan"), dtype=dtype))
        self._call("matrix", (), weight, {"out": out}, dtype=DTYPES[dtype], out_stride=out.stride(0))
        return out

    def _product(
        self, kernel: str, how: tuple[int, ...], x: Tensor, weight: CodedWeight, bias: Tensor | None = None,
        residual: Tensor | None = None, gate: str | None = None, norm: RmsNorm | None = None, in_place: bool = False,
    ) -> Tensor:  # fmt: skip
        """`in_place`: the result goes where `residual` lies."""
        columns = weight.columns // 2 if gate else weight.columns
        out = torch.full((len(x) + 1, columns), float("nan"), dtype=x.dtype)
        if in_place:
            out[:-1], residual = residual, out[:-1]
        if x.data_ptr() % 16:
            x = aligned(x)
        tensors = {"x": x, "bias": bias, "residual": residual, "out": out}
        tensors["norm"] = None if norm is None else aligned(norm.weight)
        self._call(
            kernel, how, weight, tensors, dtype=DTYPES[x.dtype], rows=len(x), gated=bool(gate),
            activation=code_of(gate) if gate else 0, x_stride=x.stride(0), out_stride=columns,
            residual_stride=0 if residual is None else residual.stride(0),
            eps=0.0 if norm is None else norm.eps, offset=0.0 if norm is None else norm.offset,
        )  # fmt: skip
        assert out[len(x) :].isnan().all()
        return out[: len(x)]

    def _call(
        self, name: str, how: tuple[int, ...], weight: CodedWeight, tensors: dict[str, Tensor | None], **numbers: float
    ) -> None:
        kept = {"codes": aligned(weight.codes), "scales": aligned(weight.scales), **tensors}
        kept["zeros"] = None if weight.zeros is None else aligned(weight.zeros)
        addresses = {key: None if t is None else t.data_ptr() for key, t in kept.items()}
        scheme = weight.scheme
        shape = {"columns": weight.columns, "depth": weight.depth}
        operands = Operands(kind=int(scheme.codes), group=scheme.group, **shape, **addresses, **numbers)
        error = getattr(self._library, name)(ctypes.byref(operands), *how)
        if error:
            raise ValueError(f"{name}: error {error}")
