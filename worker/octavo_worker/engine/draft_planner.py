"""Draft selection: which draft tokens a step verifies.

With n decodes and p rows of prompts, sequence i has k_i drafts, each accepted with probability a_i if those before are.
The step is expected to give sum_i (1 + a_i + ... + a_i^k_i) tokens in T(n + sum k_i + p) seconds, plus the draft
model's passes; without drafts it gives n tokens in T0(n + p). The expected speed-up is the ratio of these two rates,
and `choose_lengths` finds the k_i that maximise it: drafts of sequence i are worth a_i, a_i^2, ... tokens, whatever
else is verified. T and T0 were measured at loading (`StepCosts`), a_i is estimated from what was accepted
(`Acceptance`).

A drafter that proposed in vain backs off for twice as many tokens as before, so most sequences cost one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from functools import lru_cache

from octavo_worker.contract.step import UNKNOWN
from octavo_worker.engine.drafts import Guesses, Speculation, choose_lengths, expected_speedup
from octavo_worker.engine.drafts.guesses import LONGEST_REST
from octavo_worker.engine.grammar import GrammarError, Matcher
from octavo_worker.engine.kv.kv_cache_manager import KVCacheManager
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.step_in_flight import StepInFlight

GRAIN = 32
"""Acceptance estimates are rounded to 1 / GRAIN: a choice of lengths is then found in the cache for most steps."""
REMEMBERED = 4096

ASKING = 5e-6
"""Seconds of the host to tell one drafter of new tokens and to ask it for drafts."""
ASKING_SHARE = 0.01
"""Largest share of the time that may be spent on drafters that propose in vain."""


class DraftPlanner:
    """Adds drafts to the decodes of a planned step, as many as maximise the expected speed-up.

    Drafts come last, when everything else in the step has its memory, and take free blocks only. They never follow a
    token that ends the sequence or one that its grammar does not allow.
    """

    def __init__(self, speculation: Speculation, kv: KVCacheManager, vocab_size: int) -> None:
        self._speculation = speculation
        self._kv = kv
        self._vocab_size = vocab_size
        self._by_model = speculation.costs.drafting is not None
        self._min_acceptance = lru_cache(REMEMBERED)(self._compute_min_acceptance)
        self._longest_backoff = lru_cache(REMEMBERED)(self._compute_longest_backoff)
        self._choose = lru_cache(REMEMBERED)(self._compute_choice)

    def extend(self, step: StepInFlight) -> None:
        """Adds drafts to a step. No other step is in flight: all tokens are known."""
        decodes, others = step.num_decodes, step.prompt_rows
        if not decodes or (min_acceptance := self._min_acceptance(decodes, others)) >= 1.0:
            return
        members = step.sequences[:decodes]
        proposals = self._proposals(members, min_acceptance)
        if not any(proposals):
            return
        lengths = self._lengths_or_backoff(members, proposals, others, min_acceptance)
        spare = self._speculation.most_samples
        if spare is not None:
            spare -= sum(len(planned.samples) for planned in step.steps)
        for place, (sequence, proposal, length) in enumerate(zip(members, proposals, lengths, strict=True)):
            if length and spare is not None:
                length = min(length, spare)
                spare -= length
            if length and (count := self._reserve(sequence, length, step)):
                step.draft(place, proposal[:count])
                if self._kv.states is not None:
                    self._kv.states.draft(sequence, count, step)

    def is_due(self, decoding: Tokens[Sequence], others: int) -> bool:
        """True if the next step, of these decodes and about `others` rows of prompts, should have drafts and be planned
        when the step in flight has ended, instead of ahead of its end without drafts."""
        if not decoding or (min_acceptance := self._min_acceptance(len(decoding), others)) >= 1.0:
            return False
        proposals = self._proposals(decoding, min_acceptance, in_flight=1)
        return any(proposals) and any(self._lengths_or_backoff(decoding, proposals, others, min_acceptance))

    def _proposals(self, decoding: Tokens[Sequence], min_acceptance: float, in_flight: int = 0) -> list[Tokens[int]]:
        """Draft proposals of each sequence, empty for one whose drafter backs off."""
        proposals: list[Tokens[int]] = [()] * len(decoding)
        for place, sequence in enumerate(decoding):
            guesses = sequence.guesses
            if guesses is not None and (guesses.wakes <= len(sequence.output) or sequence.matcher is not None):
                proposals[place] = self._propose(sequence, guesses, len(decoding), min_acceptance, in_flight)
        return proposals

    def _propose(
        self, sequence: Sequence, guesses: Guesses, decodes: int, min_acceptance: float, in_flight: int
    ) -> Tokens[int]:
        """Draft tokens behind the last planned one. The first `in_flight` proposed tokens are left out: the step in
        flight computes them. Empty where the estimated acceptance is not above `min_acceptance`."""
        request = sequence.request
        if request.slow_masks:  # a mask behind a draft would be as slow as those that count
            return ()
        most = min(self._speculation.most, request.final - sequence.computed - in_flight)
        if most <= 0:
            return ()
        matcher = sequence.matcher
        forced = () if matcher is None else matcher.forced()
        if not forced:
            is_left_out = self._by_model and (request.oversized or matcher is not None)
            if is_left_out or guesses.wakes > len(sequence.output):
                return ()
        drafts = guesses.propose(most + in_flight, forced)
        if not forced and not (drafts and guesses.estimate > min_acceptance):
            guesses.rest(self._longest_backoff(decodes))
            return ()
        if self._by_model and drafts and drafts[0] == UNKNOWN:
            return drafts[in_flight:]
        end = self._end(drafts, request.rules.stop_ids)
        if matcher is not None and end:
            end = _allowed(matcher.copy(), drafts[:end])
        return drafts[in_flight:end]

    def _end(self, drafts: Tokens[int], stops: frozenset[int]) -> int:
        """Number of drafts before one that ends the sequence or is not in the vocabulary."""
        size = self._vocab_size
        if not drafts or (stops.isdisjoint(drafts) and min(drafts) >= 0 and max(drafts) < size):
            return len(drafts)
        return next((at for at, token in enumerate(drafts) if token in stops or not 0 <= token < size), len(drafts))

    def _lengths_or_backoff(
        self, members: Tokens[Sequence], proposals: list[Tokens[int]], others: int, min_acceptance: float
    ) -> Tokens[int]:
        """Number of drafts to verify of each sequence. A drafter none of whose proposal is verified backs off."""
        lengths = self._lengths(members, proposals, others, min_acceptance)
        for sequence, proposal, length in zip(members, proposals, lengths, strict=True):
            if proposal and not length and sequence.guesses is not None:
                sequence.guesses.rest(self._longest_backoff(len(members)))
        return lengths

    def _lengths(
        self, members: Iterable[Sequence], proposals: list[Tokens[int]], others: int, min_acceptance: float
    ) -> Tokens[int]:
        """Number of drafts to verify of each sequence, for the largest expected speed-up."""
        proposed, estimates = [0] * len(proposals), [0] * len(proposals)
        for place, (sequence, proposal) in enumerate(zip(members, proposals, strict=True)):
            if proposal and sequence.guesses is not None and sequence.guesses.estimate > min_acceptance:
                proposed[place], estimates[place] = len(proposal), round(GRAIN * sequence.guesses.estimate)
        if not any(proposed):
            return proposed
        by_model = tuple(bool(p) and p[0] == UNKNOWN for p in proposals) if self._by_model else None
        lengths, speedup = self._choose(tuple(proposed), tuple(estimates), others, by_model)
        if by_model is None or not any(lengths):
            return lengths
        step_seconds = self._speculation.costs.without_drafts(len(proposals), others)
        saved = (1.0 - 1.0 / speedup) * step_seconds / len(proposals)
        return [
            length if not (length and is_drafted and self._lags(sequence, saved)) else 0
            for sequence, length, is_drafted in zip(members, lengths, by_model, strict=True)
        ]

    def _lags(self, sequence: Sequence, saved: float) -> bool:
        """True if the draft model has missed so much of a sequence that catching up takes longer than drafts save on
        its remaining tokens, at `saved` seconds a token."""
        guesses, request = sequence.guesses, sequence.request
        missed = 0 if guesses is None else sequence.computed - guesses.seen
        return missed * self._speculation.costs.catching_up > saved * (request.final - sequence.computed)

    def _reserve(self, sequence: Sequence, count: int, step: StepInFlight) -> int:
        """Reserves free blocks for up to `count` drafts behind the planned token. Returns the number that fit."""
        if self._kv.states is not None:
            count = min(count, self._kv.states.most_drafts(sequence, step))
            if count <= 0:
                return 0
        tables = [group.table_of(sequence) for group in self._kv.groups]
        for group, table in zip(self._kv.groups, tables, strict=True):
            if table.missing(sequence.computed + count):
                room = (len(table.blocks) + group.pool.available) * table.block_size - sequence.computed
                count = min(count, room)
        for table in tables:
            table.reserve(sequence.computed + count)
        return count

    def _compute_choice(
        self, proposed: tuple[int, ...], estimates: tuple[int, ...], others: int, by_model: tuple[bool, ...] | None
    ) -> tuple[list[int], float]:
        """Number of drafts of each sequence, and the expected speed-up where a draft model is to run (else 1)."""
        acceptances, costs = [estimate / GRAIN for estimate in estimates], self._speculation.costs
        lengths = choose_lengths(proposed, acceptances, costs, others=others, by_model=by_model)
        if by_model is None:
            return lengths, 1.0
        return lengths, expected_speedup(lengths, acceptances, costs, others=others, by_model=by_model)

    def _compute_longest_backoff(self, decodes: int) -> int:
        """Tokens of the longest back-off: asking that seldom takes no more than `ASKING_SHARE` of the time."""
        seconds = self._speculation.costs.without_drafts(decodes, 0)
        return min(LONGEST_REST, max(1, round(decodes * ASKING / (ASKING_SHARE * seconds))))

    def _compute_min_acceptance(self, decodes: int, others: int) -> float:
        return self._speculation.costs.least_acceptance(decodes, others, decodes * self._speculation.most)


def _allowed(matcher: Matcher, drafts: Tokens[int]) -> int:
    """Number of leading drafts that a grammar allows, without one that completes its text."""
    try:
        for count, draft in enumerate(drafts):
            if not matcher.accept((draft,)) or matcher.is_finished:
                return count
    except GrammarError:
        return 0
    return len(drafts)
