"""From logits to tokens: penalties, bias, noise and log-probabilities, each only for the rows that need it.

Nothing here waits for the device: results are tensors, which the host reads once they have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.sampling.adjust import Adjustment, adjust, pack
from octavo_worker.contract.messages import Logprob
from octavo_worker.contract.step import Sampled, SampleRow
from octavo_worker.model.transfer import on_device, to_host


@dataclass(slots=True)
class Scores:
    """Log-probabilities of one token a row and of each row's most likely ones, of which `counts[i]` are wanted."""

    counts: Sequence[int]
    chosen: Tensor
    ids: Tensor
    values: Tensor

    def to_host(self) -> Scores:
        return Scores(self.counts, *(to_host(x) for x in (self.chosen, self.ids, self.values)))

    def result(self) -> list[Logprob]:
        chosen, ids, values = self.chosen.tolist(), self.ids.tolist(), self.values.tolist()
        return [
            Logprob(chosen[i], list(zip(ids[i][:count], values[i][:count], strict=True)))
            for i, count in enumerate(self.counts)
        ]


@dataclass(slots=True)
class Candidates:
    """The best tokens of each row, of which `counts[i]` are wanted."""

    counts: Sequence[int]
    ids: Tensor
    values: Tensor

    def to_host(self) -> Candidates:
        return Candidates(self.counts, to_host(self.ids), to_host(self.values))

    def result(self) -> list[list[tuple[int, float]]]:
        """(token, score), best first, without those at minus infinity."""
        rows = zip(self.ids.tolist(), self.values.tolist(), self.counts, strict=True)
        return [
            [(token, value) for token, value in zip(ids[:count], values[:count], strict=True) if value > -torch.inf]
            for ids, values, count in rows
        ]


@dataclass(slots=True)
class Choice:
    """One token a row, int64 `tokens[B]`, with the scores of the rows `scored` and the candidates of the rows
    `beams`."""

    tokens: Tensor
    scored: list[int] = field(default_factory=list)
    scores: Scores | None = None
    beams: list[int] = field(default_factory=list)
    candidates: Candidates | None = None

    def to_host(self) -> Choice:
        """A copy in memory of the host, without waiting for it."""
        return Choice(
            to_host(self.tokens),
            self.scored,
            self.scores and self.scores.to_host(),
            self.beams,
            self.candidates and self.candidates.to_host(),
        )

    def result(self) -> list[Sampled]:
        sampled = [Sampled(token) for token in self.tokens.tolist()]
        if self.scores is not None:
            for row, logprob in zip(self.scored, self.scores.result(), strict=True):
                sampled[row].logprob = logprob
        if self.candidates is not None:
            for row, found in zip(self.beams, self.candidates.result(), strict=True):
                sampled[row].candidates = found
        return sampled


def sample(
    logits: Tensor, rows: Sequence[SampleRow], latest: Tensor | None = None, allowed: Tensor | None = None
) -> Choice:
    """One token for each of `rows` from its row of `logits[B, vocab]` (in float32 they are changed in place).

    `latest[B]` (int64): the last token of a row's output, where `output` lacks it because only the device knows it;
    else -1. `allowed[B, ceil(vocab / 32)]` (int32) are masks, of the rows that are `masked`. Log-probabilities are of
    the raw logits: before bias, penalties, masks, temperature and filters. A row with `candidates` gets those instead.
    """
    logits, device = logits.float(), logits.device
    beams = [place for place, row in enumerate(rows) if row.candidates]
    if beams:
        beam_rows = on_device(beams, torch.int64, device)
        logits[beam_rows] = torch.log_softmax(logits[beam_rows], dim=-1)
    wanted = [place for place, row in enumerate(rows) if row.params.logprobs is not None]
    if wanted:
        wanted_rows = on_device(wanted, torch.int64, device)
        raw = logits[wanted_rows]
    adjust_rows(logits, rows, latest, allowed)
    tokens = _choose(logits, rows) if len(beams) < len(rows) else beam_rows  # a row of candidates chooses none
    choice = Choice(tokens, wanted, None, beams)
    if beams:
        choice.candidates = _candidates(logits[beam_rows], [rows[place].candidates for place in beams])
    if wanted:
        counts = [rows[place].params.logprobs or 0 for place in wanted]
        choice.scores = score(raw, choice.tokens[wanted_rows], counts)
    return choice


def draw(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """The token of each row of `logits[B, vocab]` alone, as `sample` would choose it without masks. Changes them."""
    adjust_rows(logits, rows)
    return _choose(logits, rows)


def score(logits: Tensor, tokens: Tensor, counts: Sequence[int]) -> Scores:
    """For each row of `logits[B, vocab]`: the log-probability of its token and of its `counts[i]` most likely ones."""
    return Scores(counts, *ops.logprobs(logits, tokens, min(max(counts), logits.shape[1])))


@dataclass(frozen=True, slots=True)
class WholeRows:
    """How a model on one rank chooses."""

    vocab_size: int

    def sample(self, logits: Tensor, rows: Sequence[SampleRow], allowed: Tensor | None = None) -> Choice:
        return sample(logits, rows, allowed=allowed)

    def choose(self, logits: Tensor, samples: Tensor, out: Tensor) -> None:
        ops.sample(logits, samples, out=out)

    def gather(self, logits: Tensor) -> Tensor:
        return logits

    def score(self, logits: Tensor, tokens: Tensor, counts: Sequence[int]) -> Scores:
        return score(logits, tokens, counts)


def _candidates(scores: Tensor, counts: Sequence[int]) -> Candidates:
    """The largest scores; of equals, of which logits in 16 bits have many, those with lower ids. The library would
    choose by the largest count of all rows."""
    vocab_size = scores.shape[1]
    bits = scores.float().view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    keys = ordered * vocab_size - torch.arange(vocab_size, device=scores.device)
    ids = torch.topk(keys, min(max(counts), vocab_size), dim=-1).indices
    return Candidates(counts, ids, scores.gather(1, ids))


def adjust_rows(
    logits: Tensor, rows: Sequence[SampleRow], latest: Tensor | None = None, allowed: Tensor | None = None
) -> None:
    """Bias, penalties, forbidden tokens and masks, as in vLLM, in place: one message to the device and one launch.
    `latest` and `allowed` as in `sample`."""
    if not any(map(adjusts, rows)):
        return
    message = on_device(pack([adjustment_of(row) for row in rows]), torch.int32, logits.device)
    adjust(logits, message, latest, allowed)


def adjusts(row: SampleRow) -> bool:
    p = row.params
    penalties = p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
    return bool(p.logit_bias or penalties or row.forbidden or row.masked)


def adjustment_of(row: SampleRow) -> Adjustment:
    p = row.params
    return Adjustment(
        bias=p.logit_bias or {},
        prompt=row.prompt,
        output=row.output,
        repetition=p.repetition_penalty,
        presence=p.presence_penalty,
        frequency=p.frequency_penalty,
        forbidden=row.forbidden,
        masked=row.masked,
    )


def _choose(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Greedy rows are sampled at temperature 0, which is far cheaper than torch's argmax."""
    samples = samples_of(rows, logits.shape[1])
    return ops.sample(logits, on_device(samples, torch.int32, logits.device))


def samples_of(rows: Sequence[SampleRow], vocab_size: int) -> Tensor:
    """How each row is sampled, as `ops.sample` reads it, on the CPU."""
    params = [row.params for row in rows]
    return ops.pack_samples(
        len(rows),
        seeds=[p.seed for p in params],
        indices=[row.index for row in rows],
        positions=[row.position for row in rows],
        temperature=[p.temperature for p in params],
        top_k=[min(p.top_k, vocab_size) for p in params],
        top_p=[p.top_p for p in params],
        min_p=[p.min_p for p in params],
    )
