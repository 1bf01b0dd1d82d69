"""Every launch of recurrent layers, for `every_kernel.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import cuda, ops
from octavo_kernels.ops import Convolution, GatedNorm, LayerStates, Moves
from octavo_kernels.recurrent import delta

LENGTHS, SLOTS = (1, 0, 19, 2), 8
"""Rows of sequences: in place, empty, from zeros with a keep, from one slot to another."""


def data(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).cuda()


def words(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).cuda()


def moves(more: int = 0) -> Moves:
    """The third sequence has so many rows more."""
    return Moves(
        words(0, 1, 1, 20 + more, 22 + more),
        words(1, 2, 0, 3),
        words(1, 4, 5, 6),
        words(0, 0, 0, 1, 1),
        words(9),
        words(7),
    )


def states(channels: int, taps: int, dtype: torch.dtype, *matrix: int) -> LayerStates:
    return LayerStates(data(SLOTS, *matrix) if matrix else None, data(SLOTS, taps - 1, channels, dtype=dtype))


def recurrent() -> None:
    """All that a launch is cut into, in all types."""
    if not cuda.runs_hopper_code(torch.device("cuda")):
        return
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for cut in range(6):
            delta_steps(2, 4, dtype, cut)
        delta_steps(2, 4, dtype, 0, prompts=True)
        for cut in (1, 2):
            delta_steps(2, 4, dtype, cut, head=(96, 192))
        for norm in (512, 128):
            ssm_steps(2, 8, dtype, norm)
        ssm_steps(1, 132, dtype, 132 * 64)
        ssm_steps(2, 8, dtype, 512, prompts=True)
        ssm_steps(2, 8, dtype, 512, prompts=True, size=256)
        conv_steps(520, dtype)


def delta_steps(
    key_heads: int, heads: int, dtype: torch.dtype, cut: int, prompts: bool = False, head: tuple[int, int] = (128, 128)
) -> None:
    """`prompts`: rows by chunks beside those that are walked, if the type takes them. `head`: elements of a key and a
    value."""
    given = moves(81) if prompts else moves()
    values, channels, usual = heads * head[1], 2 * key_heads * head[0] + heads * head[1], delta.run

    def run(_: str, tensors: dict[str, Tensor | None], *arguments: object) -> None:
        cuda.run("delta_step_cut", torch.device("cuda", torch.cuda.current_device()), *arguments, cut)

    if cut:
        delta.run = run
    ops.delta_step(
        data(int(given.query_start[-1]), channels + values + 2 * heads, dtype=dtype),
        states(channels, 4, dtype, heads, *head), given,
        Convolution(data(4, channels, dtype=dtype), data(channels, dtype=dtype)),
        GatedNorm(data(values).abs(), head[1]), key_heads=key_heads, rates=-data(heads).abs(), dt_bias=data(heads),
        chunked=prompts,
    )  # fmt: skip
    delta.run = usual


def ssm_steps(groups: int, heads: int, dtype: torch.dtype, group: int, prompts: bool = False, size: int = 128) -> None:
    """`prompts`: rows by chunks beside those that are walked, if the type takes them."""
    given = moves(81) if prompts else moves()
    inner, channels = heads * 64, heads * 64 + 2 * groups * size
    ops.ssm_step(
        data(int(given.query_start[-1]), inner + channels + heads, dtype=dtype),
        states(channels, 4, dtype, heads, size, 64), given,
        Convolution(data(4, channels, dtype=dtype), data(channels, dtype=dtype)),
        GatedNorm(data(inner).abs(), group, gate_first=group > 128), groups=groups, rates=-data(heads).abs(),
        dt_bias=data(heads), skip=data(heads), chunked=prompts,
    )  # fmt: skip


def conv_steps(channels: int, dtype: torch.dtype) -> None:
    for taps in (2, 3, 4):
        ops.conv_step(
            data(sum(LENGTHS), 3 * channels, dtype=dtype), states(channels, taps, dtype), moves(),
            Convolution(data(taps, channels, dtype=dtype), data(channels, dtype=dtype)),
        )  # fmt: skip
