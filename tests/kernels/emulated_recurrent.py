"""Recurrent layers as functions on the CPU: the GPU kernels' own source, compiled for the host (emulator/)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels.operands import DTYPES, address
from octavo_kernels.recurrent import chunks
from octavo_kernels.recurrent.operands import Convolution, GatedNorm, LayerStates, Moves

from .emulated import aligned, build


class MovesFields(ctypes.Structure):
    _fields_ = (("sequences", c_int), *((name, c_void_p) for name in Moves._fields))


class Slots(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64))


class ConvolutionFields(ctypes.Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("taps", c_int), ("channels", c_int))


class NormFields(ctypes.Structure):
    _fields_ = (("weight", c_void_p), ("group", c_int), ("eps", c_float), ("gate_first", c_bool))


class StepFields(ctypes.Structure):
    _fields_ = (
        ("dtype", c_int), ("x", c_void_p), ("x_stride", c_int64), ("rows", c_int), ("columns", Slots),
        ("moves", MovesFields), ("convolution", ConvolutionFields), ("out", c_void_p), ("out_stride", c_int64),
    )  # fmt: skip


class RoomFields(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("bytes", c_int64), ("tiles", c_int))


class DeltaFields(ctypes.Structure):
    _fields_ = (
        ("step", StepFields), ("matrices", Slots), ("norm", NormFields), ("key_heads", c_int), ("heads", c_int),
        ("key_dim", c_int), ("value_dim", c_int), ("rates", c_void_p), ("dt_bias", c_void_p), ("beta_scale", c_float),
        ("cut", c_int), ("room", RoomFields),
    )  # fmt: skip


class SsmFields(ctypes.Structure):
    _fields_ = (
        ("step", StepFields), ("matrices", Slots), ("norm", NormFields), ("groups", c_int), ("heads", c_int),
        ("size", c_int), ("head_dim", c_int), ("rates", c_void_p), ("dt_bias", c_void_p), ("skip", c_void_p),
        ("least", c_float), ("most", c_float), ("y", c_void_p), ("room", RoomFields),
    )  # fmt: skip


class EmulatedRecurrent:
    """`set_up`'s seed decides in which order threads and copies take their turns."""

    def __init__(self, folder: Path) -> None:
        self._library = build(folder, "recurrent", "recurrent_entry.cpp", "-DOCTAVO_BULK_COPY=1", sources="*.cu")
        self._kept: list[Tensor] = []

    def set_up(self, multiprocessors: int, seed: int) -> None:
        self._library.set_up(multiprocessors, seed)

    def delta_step(
        self, x: Tensor, states: LayerStates, moves: Moves, convolution: Convolution, norm: GatedNorm, *,
        key_heads: int, rates: Tensor, dt_bias: Tensor, beta_scale: float = 1.0, cut: int = 0, chunked: bool = False,
        tiles: int | None = None,
    ) -> Tensor:  # fmt: skip
        """`chunked`: prompts go by chunks, `tiles` at a time."""
        assert states.matrices is not None
        _, heads, key_dim, value_dim = states.matrices.shape
        out = self._held(torch.full((len(x) + 1, heads * value_dim), float("nan"), dtype=x.dtype))
        fields = DeltaFields(
            self._step(x, states, moves, convolution, out), _slots(states.matrices), _norm(norm), key_heads, heads,
            key_dim, value_dim, address(rates), address(dt_bias), beta_scale, cut,
            self._room(chunks.delta_tiles(key_heads, heads), tiles, x, moves) if chunked else RoomFields(),
        )  # fmt: skip
        return self._call("delta", fields, out)

    def ssm_step(
        self, x: Tensor, states: LayerStates, moves: Moves, convolution: Convolution, norm: GatedNorm, *,
        groups: int, rates: Tensor, dt_bias: Tensor, skip: Tensor,
        dt_limit: tuple[float, float] = (0.0, float("inf")), chunked: bool = False, tiles: int | None = None,
    ) -> Tensor:  # fmt: skip
        assert states.matrices is not None
        _, heads, size, head_dim = states.matrices.shape
        out = self._held(torch.full((len(x) + 1, heads * head_dim), float("nan"), dtype=x.dtype))
        y = self._held(torch.full(out.shape, float("nan")))
        fields = SsmFields(
            self._step(x, states, moves, convolution, out), _slots(states.matrices), _norm(norm), groups, heads, size,
            head_dim, address(rates), address(dt_bias), address(skip), *dt_limit, y.data_ptr(),
            self._room(chunks.ssm_tiles(groups, heads, size, head_dim), tiles, x, moves) if chunked else RoomFields(),
        )  # fmt: skip
        made = self._call("ssm", fields, out)
        assert y[-1:].isnan().all()
        return made

    def conv_step(self, x: Tensor, states: LayerStates, moves: Moves, convolution: Convolution) -> Tensor:
        out = self._held(torch.full((len(x) + 1, x.shape[1] // 3), float("nan"), dtype=x.dtype))
        return self._call("conv", self._step(x, states, moves, convolution, out), out)

    def step_of(self, kind: str) -> Callable[..., Tensor]:
        """The operation of a layer whose name begins with its kind."""
        step: Callable[..., Tensor] = getattr(self, kind.partition(",")[0] + "_step")
        return step

    def _room(self, made: chunks.ChunkTiles, tiles: int | None, x: Tensor, moves: Moves) -> RoomFields:
        """Room for chunks, of which every number is NaN."""
        at_once = made.most if tiles is None else tiles
        size = chunks.room_bytes(made._replace(most=at_once), len(x), len(moves.read))
        return RoomFields(self._held(torch.full((size,), 255, dtype=torch.uint8)).data_ptr(), size, at_once)

    def _held(self, tensor: Tensor) -> Tensor:
        """An aligned copy that lives as long as the call."""
        self._kept.append(aligned(tensor))
        return self._kept[-1]

    def _step(
        self, x: Tensor, states: LayerStates, moves: Moves, convolution: Convolution, out: Tensor
    ) -> StepFields:  # fmt: skip
        weight = self._held(convolution.weight)
        bias = None if convolution.bias is None else self._held(convolution.bias)
        return StepFields(
            DTYPES[x.dtype], self._held(x).data_ptr(), x.stride(0), len(x), _slots(states.columns),
            MovesFields(len(moves.read), *(t.data_ptr() for t in moves)),
            ConvolutionFields(weight.data_ptr(), address(bias), *weight.shape), out.data_ptr(), out.stride(0),
        )  # fmt: skip

    def _call(self, name: str, fields: ctypes.Structure, out: Tensor) -> Tensor:
        """Rows of `out` but the last, which stays as it was."""
        error = getattr(self._library, name)(ctypes.byref(fields))
        self._kept.clear()
        if error:
            raise ValueError(f"{name}: error {error}")
        assert out[-1:].isnan().all()
        return out[:-1]


def _slots(tensor: Tensor) -> Slots:
    return Slots(tensor.data_ptr(), tensor.stride(0))


def _norm(norm: GatedNorm) -> NormFields:
    return NormFields(address(norm.weight), norm.group, norm.eps, norm.gate_first)
