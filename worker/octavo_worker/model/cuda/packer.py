"""Turns the sequences of a step into the message of `octavo_kernels.step`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo_kernels.step import HEADER, SAMPLE, SEQUENCE
from octavo_worker.contract.step import SampleSpec, SequenceStep, StepError, StepPlan

HEADER_WORDS, SEQUENCE_WORDS, SAMPLE_WORDS = (dtype.itemsize // 4 for dtype in (HEADER, SEQUENCE, SAMPLE))


@dataclass(slots=True)
class Packed:
    """What the runner wants to know of a message without reading it again: its length in words, the tokens, each
    sequence's tokens and context, the samples of each sequence, which samples may ask for more than temperature and
    filters (`special`, places in the flattened samples), whether any sequences are grouped by what they share, and
    whether any has `cold` blocks."""

    words: int
    tokens: int
    queries: np.ndarray
    contexts: np.ndarray
    samples: list[int]
    special: list[int]
    is_shared: bool
    is_cold: bool


class Packer:
    """Remembers what the device knows of each stay: the row of its block table, how much of it was sent, its sampling
    parameters. When a stay begins, those that are absent are forgotten, whether they have ended or sit out.

    `first_host_block`: where host block 0 lies in the cache; None if no sequence ever has `cold` blocks."""

    def __init__(self, *, rows: int, block_size: int, vocab_size: int, first_host_block: int | None = None) -> None:
        self._block_size = block_size
        self._first_host_block = first_host_block
        self._vocab_size = vocab_size
        self._row_of: dict[int, int] = {}
        self._free = list(range(rows))
        self._passing: list[int] = []  # rows of the last step that nobody may remember
        self._sent = np.zeros(rows, np.int32)  # blocks of the row's table that the device has
        self._cold = np.zeros(rows, np.int32)  # leading ones of those that are the host's
        self._sampling = np.zeros(rows, SAMPLE)
        self._is_known = np.zeros(rows, bool)  # whether `_sampling` is filled in
        self._is_special = np.zeros(rows, bool)

    @staticmethod
    def capacity(rows: int, tokens: int, blocks: int) -> int:
        """Words of the longest message: `rows` sequences and samples, `blocks` blocks each, `tokens` tokens."""
        return HEADER_WORDS + rows * (SEQUENCE_WORDS + SAMPLE_WORDS + blocks) + tokens

    def pack(self, plan: StepPlan, message: np.ndarray) -> Packed:
        """Writes the message into `message` (int32). Raises `StepError` for a token id outside the vocabulary."""
        steps = plan.sequences
        count = len(steps)
        queries = np.fromiter((len(s.tokens) for s in steps), np.int32, count)
        query_ends = np.cumsum(queries, dtype=np.int32)
        tokens = self._tokens(plan, query_ends)
        rows = self._rows(steps)
        starts = np.fromiter((s.start for s in steps), np.int32, count)
        contexts = starts + queries
        samples = [len(s.samples) for s in steps]
        specs = [spec for s in steps for spec in s.samples]
        owners = np.repeat(np.arange(count), samples)

        token_at = HEADER_WORDS + count * SEQUENCE_WORDS
        sample_at = token_at + len(tokens)
        block_at = sample_at + len(specs) * SAMPLE_WORDS
        message[:HEADER_WORDS] = count, len(tokens), len(specs), HEADER_WORDS, token_at, sample_at
        sequences = message[HEADER_WORDS:token_at].view(SEQUENCE)
        sequences["row"], sequences["context"], sequences["queries"] = rows, contexts, queries
        sequences["query_start"] = query_ends - queries
        sequences["group"], sequences["prefix"] = -1, 0
        sequences["group"][: len(plan.groups)] = plan.groups
        sequences["prefix"][: len(plan.prefix_lens)] = plan.prefix_lens
        message[token_at:sample_at] = tokens
        words = self._pack_blocks(steps, rows, starts, contexts, sequences, message, block_at)

        self._learn(steps, rows)
        records = message[sample_at:block_at].view(SAMPLE)
        records[:] = self._sampling[rows[owners]]
        records["row"] = query_ends[owners] - 1
        records["index"] = np.fromiter((spec.index for spec in specs), np.int32, len(specs))
        records["position"] = contexts[owners]
        special = np.flatnonzero(self._is_special[rows[owners]]).tolist()
        is_cold = bool(self._cold[rows].any())
        return Packed(words, len(tokens), queries, contexts, samples, special, bool(plan.groups), is_cold)

    def _tokens(self, plan: StepPlan, ends: np.ndarray) -> np.ndarray:
        """All token ids; those that the device alone knows as `~` the place of the sample that they follow."""
        steps, decodes = plan.sequences, plan.num_decodes
        tokens = np.empty(int(ends[-1]), np.int64)
        tokens[:decodes] = [s.tokens[0] if s.follows is None else 0 for s in steps[:decodes]]
        _fill(tokens[decodes:], [s.tokens for s in steps[decodes:]])
        if tokens.min() < 0 or tokens.max() >= self._vocab_size:
            self._check_tokens(steps)
        following = [place for place, s in enumerate(steps[:decodes]) if s.follows is not None]
        tokens[following] = [~steps[place].follows for place in following]
        return tokens

    def _check_tokens(self, steps: list[SequenceStep]) -> None:
        for place, step in enumerate(steps):
            if step.follows is None:
                for token in step.tokens:
                    if not 0 <= token < self._vocab_size:
                        raise StepError(place, f"token id {token} is outside the vocabulary of {self._vocab_size}")

    def _rows(self, steps: list[SequenceStep]) -> np.ndarray:
        self._free += self._passing
        self._passing = []
        rows = [self._row_of.get(s.run_id, -1) for s in steps]
        if -1 in rows:
            self._give_rows(steps, rows)
        return np.array(rows, np.int64)

    def _give_rows(self, steps: list[SequenceStep], rows: list[int]) -> None:
        here = {s.run_id for s in steps}
        for stay in [stay for stay in self._row_of if stay not in here]:
            self._free.append(self._row_of.pop(stay))
        if len(self._free) < rows.count(-1):
            raise ValueError(f"{len(steps)} sequences in a step, but the runner was made for {len(self._sent)}")
        for place, step in enumerate(steps):
            if rows[place] < 0:
                rows[place] = row = self._free.pop()
                self._sent[row], self._is_known[row] = 0, False
                if step.run_id:
                    self._row_of[step.run_id] = row
                else:
                    self._passing.append(row)

    def _pack_blocks(
        self,
        steps: list[SequenceStep],
        rows: np.ndarray,
        starts: np.ndarray,
        contexts: np.ndarray,
        sequences: np.ndarray,
        message: np.ndarray,
        block_at: int,
    ) -> int:
        """The blocks that the device does not have, and the one that is written next, which may be a new copy."""
        first = np.minimum(self._sent[rows], starts // self._block_size)
        if self._first_host_block is not None:
            cold = np.fromiter((len(s.cold) for s in steps), np.int32, len(steps))
            first = np.where(cold > self._cold[rows], np.minimum(first, self._cold[rows]), first)
            self._cold[rows] = cold
        end = -(-contexts // self._block_size)
        self._sent[rows] = end
        counts = end - first
        ends = np.cumsum(counts)
        total = int(ends[-1])
        sequences["first_block"], sequences["blocks"] = first, counts
        sequences["block_at"] = block_at + ends - counts
        if total == len(steps):
            message[block_at : block_at + total] = [
                s.block_table[at] for s, at in zip(steps, first.tolist(), strict=True)
            ]
        else:
            ranges = zip(steps, first.tolist(), end.tolist(), strict=True)
            _fill(message[block_at : block_at + total], [self._entries(s, at, to) for s, at, to in ranges])
        return block_at + total

    def _entries(self, step: SequenceStep, begin: int, end: int) -> Sequence[int]:
        """Of its block table, with the host's blocks where they are cold."""
        if self._first_host_block is None or begin >= len(step.cold):
            return step.block_table[begin:end]
        hosts = [self._first_host_block + block for block in step.cold[begin:end]]
        return [*hosts, *step.block_table[len(step.cold) : end]]

    def _learn(self, steps: list[SequenceStep], rows: np.ndarray) -> None:
        for place in np.flatnonzero(~self._is_known[rows]).tolist():
            specs, row = steps[place].samples, rows[place]
            if specs:
                self._sampling[row] = _record(specs[0], self._vocab_size)
                self._is_special[row] = _may_be_special(specs)
                self._is_known[row] = True


def _fill(words: np.ndarray, parts: list[Sequence[int]]) -> None:
    """Writes the parts one after the other: arrays go as a whole, not word by word."""
    at = 0
    for part in parts:
        words[at : at + len(part)] = part
        at += len(part)


def _record(spec: SampleSpec, vocab_size: int) -> tuple[int | float, ...]:
    p = spec.params
    return p.seed, 0, 0, 0, p.temperature, min(p.top_k, vocab_size), p.top_p, p.min_p


def _may_be_special(specs: Sequence[SampleSpec]) -> bool:
    """Whether a sequence can ever ask for more than temperature and filters."""
    p = specs[0].params
    penalised = p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
    listed = p.logprobs is not None or bool(p.logit_bias) or p.min_tokens > 0
    return penalised or listed or any(spec.candidates or spec.forbidden for spec in specs)
