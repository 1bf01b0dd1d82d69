"""From logits to tokens: penalties, bias, noise and log-probabilities, each only for the rows that ask for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_worker.engine.plan import Sampled, SampleSpec
from octavo_worker.messages import Logprob


def sample(logits: Tensor, specs: list[SampleSpec]) -> list[Sampled]:
    """One token for each spec from its row of `logits[B, vocab]` (float32; changed in place).

    Log-probabilities are of the raw logits: before bias, penalties, temperature and filters. A spec that asks for
    candidates gets those instead.
    """
    beams = [row for row, spec in enumerate(specs) if spec.candidates]
    if beams:
        logits[beams] = torch.log_softmax(logits[beams], dim=-1)
    wanted = [row for row, spec in enumerate(specs) if spec.params.logprobs is not None]
    raw = logits[wanted] if wanted else None
    for row, spec in enumerate(specs):
        adjust(logits[row], spec)
    tokens = _choose(logits, specs)
    sampled = [Sampled(token) for token in tokens]
    if beams:
        for row, found in zip(beams, _candidates(logits[beams], [specs[row].candidates for row in beams]), strict=True):
            sampled[row].candidates = found
    if raw is not None:
        counts = [specs[row].params.logprobs or 0 for row in wanted]
        for row, logprob in zip(wanted, logprobs(raw, [tokens[row] for row in wanted], counts), strict=True):
            sampled[row].logprob = logprob
    return sampled


def logprobs(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[Logprob]:
    """For each row of `logits[B, vocab]`: the log-probability of its token and of its `counts[i]` most likely ones."""
    most = min(max(counts), logits.shape[1])
    chosen, ids, values = (x.tolist() for x in ops.logprobs(logits, torch.tensor(tokens, dtype=torch.int64), most))
    return [
        Logprob(chosen[i], list(zip(ids[i][:count], values[i][:count], strict=True))) for i, count in enumerate(counts)
    ]


def _candidates(scores: Tensor, counts: Sequence[int]) -> list[list[tuple[int, float]]]:
    """The `counts[i]` best tokens of each row of `scores[B, vocab]` with their scores, without those at -inf."""
    values, ids = torch.topk(scores, min(max(counts), scores.shape[1]), dim=-1)
    rows = zip(ids.tolist(), values.tolist(), counts, strict=True)
    return [
        [(token, value) for token, value in zip(ids[:count], values[:count], strict=True) if value > -torch.inf]
        for ids, values, count in rows
    ]


def adjust(row: Tensor, spec: SampleSpec) -> None:
    """Bias, penalties and forbidden tokens on one row of logits, in place.

    As in vLLM: the repetition penalty (CTRL, arXiv 1909.05858, section 4.1) looks at prompt and output, presence and
    frequency penalties at the output only.
    """
    params = spec.params
    if params.logit_bias:
        row[list(params.logit_bias)] += torch.tensor(list(params.logit_bias.values()))
    if params.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(np.fromiter((*spec.prompt, *spec.output), np.int64)))
        values = row[seen]
        row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and spec.output:
        ids, counts = np.unique(np.fromiter(spec.output, np.int64), return_counts=True)
        penalty = params.presence_penalty + params.frequency_penalty * torch.from_numpy(counts)
        row[torch.from_numpy(ids)] -= penalty.float()
    if spec.forbidden:
        row[list(spec.forbidden)] = -torch.inf


def _choose(logits: Tensor, specs: list[SampleSpec]) -> list[int]:
    """Greedy rows have temperature 0 there, which is far cheaper than torch's argmax."""
    params = [spec.params for spec in specs]
    vocab = logits.shape[1]
    tokens = ops.sample(
        logits,
        seeds=torch.tensor([p.seed for p in params], dtype=torch.int64),
        indices=torch.tensor([spec.index for spec in specs], dtype=torch.int32),
        positions=torch.tensor([spec.position for spec in specs], dtype=torch.int32),
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32),
        top_k=torch.tensor([min(p.top_k, vocab) for p in params], dtype=torch.int32),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32),
    )
    return tokens.tolist()
