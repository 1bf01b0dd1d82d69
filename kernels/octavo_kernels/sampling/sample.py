"""Tokens chosen from logits, and their log-probabilities."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from octavo_kernels import _cpu, checks
from octavo_kernels.call import check, float_type, rows_of, run
from octavo_kernels.operands import rows_at

SAMPLE = _cpu.STEP_SAMPLE
"""The numpy type of `StepSample` in csrc/messages.h: how one token is chosen."""
SAMPLE_WORDS = int(SAMPLE.itemsize) // 4


def pack_samples(
    rows: int,
    *,
    seeds: ArrayLike = 0,
    indices: ArrayLike = 0,
    positions: ArrayLike = 0,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike = 0,
    top_p: ArrayLike = 1.0,
    min_p: ArrayLike = 0.0,
) -> Tensor:
    """Records, int32 `[rows, SAMPLE_WORDS]` on the CPU. Each parameter is `[rows]`, or one value for all."""
    records = np.zeros(rows, SAMPLE)
    records["seed"], records["index"], records["position"] = seeds, indices, positions
    records["temperature"], records["top_k"], records["top_p"], records["min_p"] = temperature, top_k, top_p, min_p
    return torch.from_numpy(records.view(np.int32).reshape(rows, SAMPLE_WORDS))


def sample(logits: Tensor, samples: Tensor, out: Tensor | None = None) -> Tensor:
    """One token for each row of `logits[B, V]` (penalties and biases applied): int64 `[B]`, in `out` if it is given.

    `samples[B, SAMPLE_WORDS]` (int32) are contiguous `SAMPLE` records, as `pack_samples` makes them.
    The token is argmax(logit / temperature + noise) over the tokens that pass the filters, the lowest id among equals;
    the noise is a pure function of (seed, index, position, token id): Gumbel values from Philox4x32-10 (Salmon et al.,
    SC 2011) with the seed as key and (id // 4, position, index, 0) as counter, word id % 4, u = (word + 1/2) / 2^32.
    Temperature 0 takes the largest logit.

    Filters act on scaled logits, in this order, on sets: top-k (0: off) keeps what is at least the k-th largest, ties
    included; top-p (1: off) keeps, of those, what is at least as large as the token at which the mass, summed from the
    top, reaches `top_p` of the total, ties included; min-p (0: off) keeps what has at least `min_p` times the largest
    probability. Every instruction-set level chooses the same token. A row without a number above -inf gives -1; among
    numbers a NaN is passed over. Logits in 16 bits give what their float32 values give. Raises ValueError for logits
    without columns, or samples that are not contiguous.
    """
    dtype = float_type("logits", logits)
    rows, vocab = rows_of("logits", logits)
    if vocab == 0:
        raise ValueError("logits must have at least one column")
    check("samples", samples, torch.int32, (rows, SAMPLE_WORDS))
    if not samples.is_contiguous():
        raise ValueError(f"samples must be contiguous; its strides are {samples.stride()}")
    if logits.is_cpu:
        logits = logits.float()
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    check("out", tokens, torch.int64, (rows,))
    run(
        "sample", {"logits": logits, "samples": samples, "out": tokens},
        *(() if logits.is_cpu else (dtype,)), rows_at(logits), rows, vocab, samples.data_ptr(), tokens.data_ptr(),
    )  # fmt: skip
    return tokens


def logprobs(logits: Tensor, tokens: Tensor, top_n: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Natural-log probabilities under softmax(`logits[B, V]`); logits in 16 bits give what their float32 values give.

    Returns those of `tokens[B]` (int64) as float32 `[B]`, NaN for -1, then the ids (int64) and values (float32) of the
    `top_n` most probable tokens, both `[B, top_n]`, largest first, the lowest id first among equals. Raises ValueError
    for a `top_n` beyond the vocabulary.
    """
    dtype = float_type("logits", logits)
    rows, vocab = rows_of("logits", logits)
    check("tokens", tokens, torch.int64, (rows,))
    if not 0 <= top_n <= vocab:
        raise ValueError(f"top_n must be between 0 and the vocabulary's {vocab}, not {top_n}")
    if checks.wanted(tokens):
        checks.in_range("tokens", tokens, -1, vocab, "tokens")
    if logits.is_cpu:
        logits = logits.float()
    device = logits.device
    chosen = torch.empty(rows, device=device)
    ids = torch.empty((rows, top_n), dtype=torch.int64, device=device)
    values = torch.empty((rows, top_n), device=device)
    run(
        "logprobs", {"logits": logits, "tokens": tokens},
        *(() if logits.is_cpu else (dtype,)), rows_at(logits), rows, vocab, tokens.data_ptr(), top_n,
        chosen.data_ptr(), ids.data_ptr(), values.data_ptr(),
    )  # fmt: skip
    return chosen, ids, values
