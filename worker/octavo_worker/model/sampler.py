"""From logits to tokens: penalties, bias, noise and log-probabilities, each only for the rows that ask for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from octavo_kernels import ops
from torch import Tensor

from octavo_worker.engine.plan import Sampled, SampleSpec
from octavo_worker.messages import EngineSampling, Logprob


def sample(logits: Tensor, specs: list[SampleSpec]) -> list[Sampled]:
    """One token for each spec from its row of `logits[B, vocab]` (float32; changed in place).

    Log-probabilities are of the raw logits: before bias, penalties, temperature and filters.
    """
    wanted = [i for i, spec in enumerate(specs) if spec.params.logprobs is not None]
    raw = torch.log_softmax(logits[wanted], dim=-1) if wanted else None
    for row, spec in enumerate(specs):
        adjust(logits[row], spec)
    tokens = _choose(logits, specs)
    sampled = [Sampled(token) for token in tokens]
    if raw is not None:
        chosen = [tokens[i] for i in wanted]
        counts = [specs[i].params.logprobs or 0 for i in wanted]
        for i, logprob in zip(wanted, logprobs(raw, chosen, counts), strict=True):
            sampled[i].logprob = logprob
    return sampled


def logprobs(log_probabilities: Tensor, chosen: Sequence[int], counts: Sequence[int]) -> list[Logprob]:
    """For each row of `log_probabilities[B, vocab]`: that of the chosen token and of its `counts[i]` most likely ones."""
    of_chosen = log_probabilities.gather(1, torch.tensor(chosen)[:, None])[:, 0].tolist()
    best = log_probabilities.topk(min(max(counts), log_probabilities.shape[1]), dim=-1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        Logprob(of_chosen[i], list(zip(ids[i][:count], values[i][:count], strict=True)))
        for i, count in enumerate(counts)
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
    random = [i for i, spec in enumerate(specs) if spec.params.temperature > 0.0]
    if not random:
        return logits.argmax(dim=-1).tolist()
    raise NotImplementedError
