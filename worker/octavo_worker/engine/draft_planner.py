"""Which drafts a step verifies."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from functools import lru_cache

from octavo_worker.contract.step import UNKNOWN
from octavo_worker.engine.drafts import Guesses, Speculation, choose_lengths, expected_gain
from octavo_worker.engine.drafts.guesses import LONGEST_REST
from octavo_worker.engine.grammar import GrammarError, Matcher
from octavo_worker.engine.kv.kv_cache_manager import KVCacheManager
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.step_in_flight import StepInFlight

GRAIN = 32
"""Estimates are rounded to so many steps where lengths are chosen: what was chosen once serves most steps after it."""
REMEMBERED = 4096

ASKING = 5e-6
"""Seconds that the host takes to ask one sequence for drafts, and to tell its drafter of what was said since."""
ASKING_SHARE = 0.01
"""Part of the time that may go to asking in vain."""


class DraftPlanner:
    """Gives the decodes of a planned step drafts, as many as are expected to pay.

    Drafts come last: all others of the step have what they need by then. They take free blocks and nothing else. A
    decode without any is the plain one. None are behind a token that ends its sequence, or one that is not allowed.
    """

    def __init__(self, speculation: Speculation, kv: KVCacheManager, vocab_size: int) -> None:
        self._speculation = speculation
        self._kv = kv
        self._vocab_size = vocab_size
        self._by_model = speculation.costs.drafting is not None
        self._least = lru_cache(REMEMBERED)(self._compute_least)
        self._longest_rest = lru_cache(REMEMBERED)(self._compute_longest_rest)
        self._choose = lru_cache(REMEMBERED)(self._compute_choice)

    def extend(self, step: StepInFlight) -> None:
        """Add drafts to a step. No other is in flight: all tokens are known."""
        decodes, others = step.num_decodes, step.prompt_rows
        if not decodes or (least := self._least(decodes, others)) >= 1.0:
            return
        members = step.sequences[:decodes]
        offers = self._offers(members, least)
        if not any(offers):
            return
        lengths = self._worthwhile(members, offers, others, least)
        spare = self._speculation.most_samples
        if spare is not None:
            spare -= sum(len(planned.samples) for planned in step.steps)
        for place, (sequence, offer, length) in enumerate(zip(members, offers, lengths, strict=True)):
            if length and spare is not None:
                length = min(length, spare)
                spare -= length
            if length and (count := self._reserve(sequence, length)):
                step.draft(place, offer[:count])

    def is_due(self, decoding: Tokens[Sequence], others: int) -> bool:
        """Whether the step after the one in flight, of these decodes and about so many rows of prompts, is better
        planned with drafts, once that has ended, than ahead of its end without."""
        if not decoding or (least := self._least(len(decoding), others)) >= 1.0:
            return False
        offers = self._offers(decoding, least, in_flight=1)
        return any(offers) and any(self._worthwhile(decoding, offers, others, least))

    def _offers(self, decoding: Tokens[Sequence], least: float, in_flight: int = 0) -> list[Tokens[int]]:
        """What may follow in each sequence. Most of the time most of them rest: those cost a look."""
        offers: list[Tokens[int]] = [()] * len(decoding)
        for place, sequence in enumerate(decoding):
            guesses = sequence.guesses
            if guesses is not None and (guesses.wakes <= len(sequence.output) or sequence.matcher is not None):
                offers[place] = self._offer(sequence, guesses, len(decoding), least, in_flight)
        return offers

    def _offer(self, sequence: Sequence, guesses: Guesses, decodes: int, least: float, in_flight: int) -> Tokens[int]:
        """What may follow the token that is planned last, but for `in_flight` tokens, which come before. Nothing where
        it is not likely to be right with more than the `least` probability that pays."""
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
        if not forced and not (drafts and guesses.estimate > least):
            guesses.rest(self._longest_rest(decodes))
            return ()
        if self._by_model and drafts and drafts[0] == UNKNOWN:
            return drafts[in_flight:]
        end = self._end(drafts, request.rules.stop_ids)
        if matcher is not None and end:
            end = _allowed(matcher.copy(), drafts[:end])
        return drafts[in_flight:end]

    def _end(self, drafts: Tokens[int], stops: frozenset[int]) -> int:
        """How many drafts there are before one that ends the sequence or is no token."""
        size = self._vocab_size
        if not drafts or (stops.isdisjoint(drafts) and min(drafts) >= 0 and max(drafts) < size):
            return len(drafts)
        return next((at for at, token in enumerate(drafts) if token in stops or not 0 <= token < size), len(drafts))

    def _worthwhile(
        self, members: Tokens[Sequence], offers: list[Tokens[int]], others: int, least: float
    ) -> Tokens[int]:
        """How many of the offered drafts are worth verifying. A sequence that offered in vain rests."""
        lengths = self._lengths(members, offers, others, least)
        for sequence, offer, length in zip(members, offers, lengths, strict=True):
            if offer and not length and sequence.guesses is not None:
                sequence.guesses.rest(self._longest_rest(len(members)))
        return lengths

    def _lengths(
        self, members: Iterable[Sequence], offers: list[Tokens[int]], others: int, least: float
    ) -> Tokens[int]:
        """How many of the offered drafts are worth verifying."""
        offered, estimates = [0] * len(offers), [0] * len(offers)
        for place, (sequence, offer) in enumerate(zip(members, offers, strict=True)):
            if offer and sequence.guesses is not None and sequence.guesses.estimate > least:
                offered[place], estimates[place] = len(offer), round(GRAIN * sequence.guesses.estimate)
        if not any(offered):
            return offered
        by_model = tuple(bool(offer) and offer[0] == UNKNOWN for offer in offers) if self._by_model else None
        lengths, gain = self._choose(tuple(offered), tuple(estimates), others, by_model)
        if by_model is None or not any(lengths):
            return lengths
        saved = (1.0 - 1.0 / gain) * self._speculation.costs.without_drafts(len(offers), others) / len(offers)
        return [
            length if not (length and is_guessed and self._lags(sequence, saved)) else 0
            for sequence, length, is_guessed in zip(members, lengths, by_model, strict=True)
        ]

    def _lags(self, sequence: Sequence, saved: float) -> bool:
        """Whether a draft model has missed so much of a sequence that what it would save, `saved` seconds a token, does
        not make up for catching up."""
        guesses, request = sequence.guesses, sequence.request
        missed = 0 if guesses is None else sequence.computed - guesses.seen
        return missed * self._speculation.costs.catching_up > saved * (request.final - sequence.computed)

    def _reserve(self, sequence: Sequence, count: int) -> int:
        """Take free blocks for up to `count` drafts behind the planned token. Returns for how many there are."""
        table = sequence.table
        if table.missing(sequence.computed + count):
            room = (len(table.blocks) + self._kv.pool.available) * table.block_size - sequence.computed
            count = min(count, room)
            table.reserve(sequence.computed + count)
        return count

    def _compute_choice(
        self, offered: tuple[int, ...], estimates: tuple[int, ...], others: int, by_model: tuple[bool, ...] | None
    ) -> tuple[list[int], float]:
        """The lengths, and how much faster the step is than one without drafts, where models are to guess."""
        acceptances, costs = [estimate / GRAIN for estimate in estimates], self._speculation.costs
        lengths = choose_lengths(offered, acceptances, costs, others=others, by_model=by_model)
        if by_model is None:
            return lengths, 1.0
        return lengths, expected_gain(lengths, acceptances, costs, others=others, by_model=by_model)

    def _compute_longest_rest(self, decodes: int) -> int:
        """Tokens: if all of so many sequences rest as long, asking takes no more than its share of the time."""
        seconds = self._speculation.costs.without_drafts(decodes, 0)
        return min(LONGEST_REST, max(1, round(decodes * ASKING / (ASKING_SHARE * seconds))))

    def _compute_least(self, decodes: int, others: int) -> float:
        return self._speculation.costs.least_acceptance(decodes, others, decodes * self._speculation.most)


def _allowed(matcher: Matcher, drafts: Tokens[int]) -> int:
    """How many drafts a grammar allows, but for one with which its text is complete."""
    try:
        for count, draft in enumerate(drafts):
            if not matcher.accept((draft,)) or matcher.is_finished:
                return count
    except GrammarError:
        return 0
    return len(drafts)
