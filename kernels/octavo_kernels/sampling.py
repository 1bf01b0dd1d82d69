"""Tokens chosen from logits, and their log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import checks
from octavo_kernels.call import check, float_type, rows_of, run


def sample(
    logits: Tensor,
    seeds: Tensor,
    indices: Tensor,
    positions: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """One token for each row of `logits[B, V]` (penalties and biases applied): int64 `[B]`, in `out` if it is given.

    All other arguments have shape `[B]`: `seeds` int64; sequence `indices`, absolute `positions` and `top_k` int32;
    `temperature`, `top_p` and `min_p` float32. The token is argmax(logit / temperature + noise) over the tokens that
    pass the filters, the lowest id among equals; the noise is a pure function of (seed, index, position, token id):
    Gumbel values from Philox4x32-10 (Salmon et al., SC 2011) with the seed as key and (id // 4, position, index, 0) as
    counter, word id % 4, u = (word + 1/2) / 2^32. Temperature 0 takes the largest logit.

    Filters act on scaled logits, in this order, on sets: top-k (0: off) keeps what is at least the k-th largest, ties
    included; top-p (1: off) keeps, of those, what is at least as large as the token at which the mass, summed from the
    top, reaches `top_p` of the total, ties included; min-p (0: off) keeps what has at least `min_p` times the largest
    probability. Every instruction-set level chooses the same token. A row of -inf everywhere gives 0. Logits in 16 bits
    give what their float32 values give.
    """
    dtype = float_type("logits", logits)
    rows, vocab = rows_of("logits", logits)
    if vocab == 0:
        raise ValueError("logits must have at least one column")
    shape = (rows,)
    check("seeds", seeds, torch.int64, shape)
    check("indices", indices, torch.int32, shape)
    check("positions", positions, torch.int32, shape)
    check("temperature", temperature, torch.float32, shape)
    check("top_k", top_k, torch.int32, shape)
    check("top_p", top_p, torch.float32, shape)
    check("min_p", min_p, torch.float32, shape)
    if logits.is_cpu:
        logits = logits.float()
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    check("out", tokens, torch.int64, shape)
    tensors = {
        "logits": logits, "seeds": seeds, "indices": indices, "positions": positions, "temperature": temperature,
        "top_k": top_k, "top_p": top_p, "min_p": min_p, "out": tokens,
    }  # fmt: skip
    run(
        "sample", tensors,
        *(() if logits.is_cpu else (dtype,)), logits.data_ptr(), logits.stride(0), rows, vocab, seeds.data_ptr(),
        indices.data_ptr(), positions.data_ptr(), temperature.data_ptr(), top_k.data_ptr(), top_p.data_ptr(),
        min_p.data_ptr(), tokens.data_ptr(),
    )  # fmt: skip
    return tokens


def logprobs(logits: Tensor, tokens: Tensor, top_n: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Natural-log probabilities under softmax(`logits[B, V]`); logits in 16 bits give what their float32 values give.

    Returns those of `tokens[B]` (int64) as float32 `[B]`, then the ids (int64) and values (float32) of the `top_n` most
    probable tokens, both `[B, top_n]`, largest first, the lowest id first among equals.
    """
    dtype = float_type("logits", logits)
    rows, vocab = rows_of("logits", logits)
    check("tokens", tokens, torch.int64, (rows,))
    if not 0 <= top_n <= vocab:
        raise ValueError(f"top_n must be between 0 and the vocabulary's {vocab}, not {top_n}")
    if checks.wanted(tokens):
        checks.in_range("tokens", tokens, 0, vocab, "tokens")
    if logits.is_cpu:
        logits = logits.float()
    device = logits.device
    chosen = torch.empty(rows, device=device)
    ids = torch.empty((rows, top_n), dtype=torch.int64, device=device)
    values = torch.empty((rows, top_n), device=device)
    run(
        "logprobs", {"logits": logits, "tokens": tokens},
        *(() if logits.is_cpu else (dtype,)), logits.data_ptr(), logits.stride(0), rows, vocab, tokens.data_ptr(),
        top_n, chosen.data_ptr(), ids.data_ptr(), values.data_ptr(),
    )  # fmt: skip
    return chosen, ids, values
