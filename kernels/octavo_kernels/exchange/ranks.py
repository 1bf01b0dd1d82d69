"""Where processes that compute one model meet, over memory of the CPU that they share; tokens from parts of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import _cpu, cuda
from octavo_kernels.call import check, check_devices, float_type, rows_of, run
from octavo_kernels.operands import rows_at
from octavo_kernels.sampling.sample import SAMPLE_WORDS

COUNT_BYTES = 64
"""Bytes of a shared count: a cache line, zero at first."""
SPIN_US, YIELD_US = 20, 300
"""For so long a count is looked at, then in turn with whatever else wants the core, before the thread sleeps. Waking it
takes longer than ranks that compute alike differ by."""


def sum_parts(parts: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
    """`parts[ranks, T, N]`, each dense, added up in their order, then `residual[T, N]` (which may be `out`), in
    float32, into `out[T, N]`. On the CPU only. Raises ValueError for parts that are not contiguous."""
    dtype = float_type("parts", parts)
    ranks, rows, width = parts.shape
    check("out", out, parts.dtype, (rows, width))
    if residual is not None:
        check("residual", residual, parts.dtype, (rows, width))
    if rows and (parts.stride(2) != 1 or (rows > 1 and parts.stride(1) != width)):
        raise ValueError(f"each of parts must be contiguous; their strides are {parts.stride()}")
    run(
        "sum_parts", {"parts": parts, "out": out, "residual": residual},
        dtype, parts.data_ptr(), parts.stride(0) * parts.itemsize, ranks, rows_at(residual), rows_at(out), rows, width,
    )  # fmt: skip
    return out


def post(count: int, value: int) -> None:
    """Counts up to `value`, modulo 2^32, the number at the address `count`: for all that await it, what this thread
    wrote before is there."""
    _cpu.post_count(count, value)


def posted(count: int) -> int:
    return int(_cpu.read_count(count))


def arrives(count: int, value: int, sleep_ms: int) -> bool:
    """Waits until the number at the address `count` has come to `value`, modulo 2^32, but not much longer than
    `sleep_ms`. Returns whether it has."""
    return bool(_cpu.await_count(count, value, SPIN_US, YIELD_US, sleep_ms))


def sample_part(logits: Tensor, samples: Tensor, first: int, floors: Tensor) -> tuple[Tensor, Tensor]:
    """As `ops.sample` of a part of the rows: `logits[B, n]` (float32) are those of the tokens from `first` on, a
    multiple of 4. The filters of the whole rows are `floors[B]`, the least of the logits over temperature that survive.
    Returns the tokens, int64 `[B]`, and what each reaches: its scaled logit plus noise, or at temperature 0 its logit;
    minus infinity where there is none. The token of a whole row is that of the part that reaches most, of the first of
    them among equals. On the CPU only. Raises ValueError for another `first`."""
    rows, columns = logits.shape
    check("logits", logits, torch.float32, (rows, None))
    check("samples", samples, torch.int32, (rows, None))
    check("floors", floors, torch.float32, (rows,))
    if first % 4:
        raise ValueError(f"first must be a multiple of 4, not {first}")
    tokens, reached = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    run(
        "sample_part", {"logits": logits, "samples": samples, "floors": floors},
        rows_at(logits), rows, columns, samples.data_ptr(), first, floors.data_ptr(), tokens.data_ptr(),
        reached.data_ptr(),
    )  # fmt: skip
    return tokens, reached


def draw_part(logits: Tensor, samples: Tensor, first: int) -> Tensor:
    """As `ops.sample` without filters, of a part of the rows: `logits[B, n]` are those of the tokens from `first` on, a
    multiple of 4. Returns candidates, int64 `[B]`: read as unsigned numbers they are in the order of what the tokens
    reach, those of lower tokens first among equals. On CUDA only. Raises ValueError for another `first`, or samples
    that are not contiguous."""
    dtype = float_type("logits", logits)
    rows, columns = rows_of("logits", logits)
    check("samples", samples, torch.int32, (rows, SAMPLE_WORDS))
    if not samples.is_contiguous():
        raise ValueError(f"samples must be contiguous; its strides are {samples.stride()}")
    if first % 4:
        raise ValueError(f"first must be a multiple of 4, not {first}")
    candidates = torch.empty(rows, dtype=torch.int64, device=logits.device)
    cuda.run(
        "sample_part", check_devices({"logits": logits, "samples": samples}),
        dtype, rows_at(logits), rows, columns, samples.data_ptr(), first, candidates.data_ptr(),
    )  # fmt: skip
    return candidates


def best_part(candidates: Tensor, out: Tensor) -> Tensor:
    """The tokens of whole rows, int64 `out[B]`, from the `candidates[parts, B]` of `draw_part`. On CUDA only. Raises
    ValueError for candidates that are not contiguous."""
    parts, rows = candidates.shape
    check("candidates", candidates, torch.int64, (parts, rows))
    check("out", out, torch.int64, (rows,))
    if not candidates.is_contiguous():
        raise ValueError(f"candidates must be contiguous; its strides are {candidates.stride()}")
    device = check_devices({"candidates": candidates, "out": out})
    cuda.run("best_part", device, candidates.data_ptr(), parts, rows, out.data_ptr())
    return out


def masses(scaled: Tensor, tops: Tensor) -> Tensor:
    """Masses that the filters of `ops.sample` sum: exp(`scaled[B, n]` - `tops[B]`) in units of 2^-40, int64 `[B, n]`.
    On the CPU only."""
    rows, columns = scaled.shape
    check("scaled", scaled, torch.float32, (rows, None))
    check("tops", tops, torch.float32, (rows,))
    made = torch.empty((rows, columns), dtype=torch.int64)
    run(
        "masses", {"scaled": scaled, "tops": tops}, rows_at(scaled), rows, columns, tops.data_ptr(), made.data_ptr()
    )  # fmt: skip
    return made
