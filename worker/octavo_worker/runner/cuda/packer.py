"""Packing of a plan into one `PackedStep`, around the message of `octavo_kernels.step`.

A message is int32 words: a header, a record for each sequence, token ids, a record for each sample, of a model with
states their moves, block ids. Only what the device does not have is sent: block ids that are new since the last step of
a run. A token that the host does not know yet is `~n`. With n a sample of the step launched before, the device takes
that sample; with n in `Packer`'s range of draft places, the draft that a draft pass left there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np

from octavo_kernels.sampling.sample import SAMPLE, SAMPLE_WORDS
from octavo_kernels.step import HEADER, SEQUENCE
from octavo_worker.contract.step import SampleRow, SampleSpec, SequenceStep, StepError, StepPlan
from octavo_worker.contract.windows import NO_MOVES, BlockMoves
from octavo_worker.runner.base import PromptScores, prompt_scores
from octavo_worker.runner.cuda.moves import most_words, pack_moves
from octavo_worker.runner.cuda.sent_tables import SentTables, fill
from octavo_worker.runner.cuda.shapes import Shape, StepSizes

HEADER_SAMPLES, HEADER_SAMPLE_AT = HEADER.names.index("samples"), HEADER.names.index("sample_at")
HEADER_WORDS, SEQUENCE_WORDS = (int(dtype.itemsize) // 4 for dtype in (HEADER, SEQUENCE))


class Shapes(Protocol):
    """Choice of the padded shape of a step."""

    def of(self, step: StepSizes) -> Shape: ...


@dataclass(frozen=True, slots=True)
class SpecialRow:
    """A sample with more than temperature, filters and a mask: its `place` among the step's
    samples, its row, and in `follows` the place among the step's tokens of the one that `row.output` lacks because only
    the device knows it, or -1."""

    place: int
    row: SampleRow
    follows: int


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step as a runner executes it, complete: it may be executed again, or sent to other ranks.

    `words` (int32) is the message, in the memory that it was packed into; `shape` is the padded shape. A step without
    sequences has neither. `samples[S]` are the numbers of samples of the sequences. Samples at the places `masked`
    (int64, ascending) need a mask beside temperature and filters, and nothing else; those in `special` need more.
    Swaps, copies and `uses_swapped_in` are those of the plan; `windows` are those of the second group of blocks.
    """

    words: np.ndarray
    sizes: StepSizes
    shape: Shape | None
    samples: list[int]
    masked: np.ndarray
    special: list[SpecialRow]
    scores: list[PromptScores]
    copies: Sequence[tuple[int, int]]
    swap_out: Sequence[tuple[int, int]]
    swap_in: Sequence[tuple[int, int]]
    uses_swapped_in: bool
    state_out: Sequence[tuple[int, int]] = ()
    state_in: Sequence[tuple[int, int]] = ()
    windows: BlockMoves = NO_MOVES


@dataclass(frozen=True, slots=True)
class Layout:
    """The part of a message that does not change while a batch of decodes stays the same.

    It holds for steps with the same `key`: per sequence the run, its number of tokens, and its samples' rows. Of the S
    sequences: `rows[S]` of the device's block tables, `queries[S]` tokens, in the ragged batch from `query_starts[S]`
    to `query_ends[S]`, `samples[S]` samples, `contexts[S]` of their rows. Of the N samples: `owners[N]` their
    sequences, `after[N]` (or 0) the tokens of the sequence behind the sampled row, `records[N]` complete but for the
    position. `special` and `masked` are places of samples, as in `PackedStep`.
    """

    key: list[tuple[int, int, int, Sequence[int]]]
    rows: np.ndarray
    queries: np.ndarray
    query_starts: np.ndarray
    query_ends: np.ndarray
    samples: list[int]
    owners: np.ndarray
    after: np.ndarray | int
    records: np.ndarray
    special: list[int]
    masked: np.ndarray
    contexts: np.ndarray


class Packer:
    """Packs plans for one device, and mirrors the device's state of each run: the row of its block table, how many of
    its blocks were sent, its sampling parameters. When a run begins, absent runs are evicted, whether they have ended
    or pause.

    `first_host_block` and `windows` are those of `SentTables`. `guesses`: the range of draft places, behind the samples
    of a step; a plan has `~place` for a draft that the device fills in. With `states` messages have the moves of the
    sequences."""

    def __init__(
        self,
        *,
        rows: int,
        block_size: int,
        vocab_size: int,
        shapes: Shapes,
        first_host_block: int | None = None,
        guesses: range = range(0),
        states: bool = False,
        windows: bool = False,
    ) -> None:
        self._guesses, self._states = guesses, states
        self._tables = SentTables(rows, block_size, first_host_block, windows=windows)
        self._vocab_size = vocab_size
        self._shapes = shapes
        self._row_of: dict[int, int] = {}
        self._free = list(range(rows))
        self._passing: list[int] = []  # rows of the last step's sequences without a run id, free for the next step
        self._sampling = np.zeros(rows, SAMPLE)
        self._is_known = np.zeros(rows, bool)  # `_sampling` of the row is filled in
        self._is_special = np.zeros(rows, bool)
        self._is_masked = np.zeros(rows, bool)  # and not special
        self._latest: Layout | None = None  # of a batch of decodes, which often stays the same for many steps

    @staticmethod
    def capacity(
        rows: int, samples: int, tokens: int, blocks: int, *, states: bool = False, windows: bool = False
    ) -> int:
        """Words of the longest message, of `rows` sequences with `blocks` blocks each, `samples` and `tokens` in
        all."""
        moves, ids = most_words(rows, tokens) if states else 0, blocks * (1 + windows)
        return HEADER_WORDS + rows * (SEQUENCE_WORDS + ids) + samples * SAMPLE_WORDS + tokens + moves

    def pack(self, plan: StepPlan, message: np.ndarray) -> PackedStep:
        """Writes the message into `message` (int32). Raises `StepError` for a token id outside the vocabulary."""
        steps = plan.sequences
        if not steps:
            return _without_sequences(plan)
        layout = self._layout(plan)
        count, owners = len(steps), layout.owners
        tokens = self._tokens(plan, layout)
        starts = np.fromiter((s.start for s in steps), np.int32, count)
        contexts = starts + layout.queries

        token_at = HEADER_WORDS + count * SEQUENCE_WORDS
        sample_at = token_at + len(tokens)
        move_at = sample_at + len(owners) * SAMPLE_WORDS
        block_at = move_at + (pack_moves(steps, message[move_at:]) if self._states else 0)
        message[:HEADER_WORDS] = count, len(tokens), len(owners), HEADER_WORDS, token_at, sample_at
        sequences = message[HEADER_WORDS:token_at].view(SEQUENCE)
        sequences["row"], sequences["context"], sequences["queries"] = layout.rows, contexts, layout.queries
        sequences["query_start"], sequences["row_context"] = layout.query_starts, layout.contexts
        sequences["group"], sequences["prefix"] = -1, 0
        sequences["group"][: len(plan.groups)] = plan.groups
        sequences["prefix"][: len(plan.prefix_lens)] = plan.prefix_lens
        message[token_at:sample_at] = tokens
        words = self._tables.pack(steps, layout.rows, starts, contexts, sequences, message, block_at)

        records = message[sample_at:move_at].view(SAMPLE)
        records[:] = layout.records
        records["position"] = contexts[owners] - layout.after
        sizes = self._sizes(plan, layout, contexts)
        return PackedStep(
            message[:words],
            sizes,
            self._shapes.of(sizes),
            layout.samples,
            layout.masked,
            _special_rows(steps, layout.special, layout.query_starts),
            prompt_scores(plan, layout.query_starts),
            plan.copies,
            plan.swap_out,
            plan.swap_in,
            plan.uses_swapped_in,
            plan.state_out,
            plan.state_in,
            plan.windows,
        )

    def _layout(self, plan: StepPlan) -> Layout:
        steps = plan.sequences
        key = [(s.run_id, len(s.tokens), len(s.samples), s.sample_rows) for s in steps]
        if self._latest is not None and self._latest.key == key:
            return self._latest
        rows = self._rows(steps)
        self._learn(steps, rows)
        queries = np.array([tokens for _, tokens, *_ in key], np.int32)
        query_ends = np.cumsum(queries, dtype=np.int32)
        samples = [count for _, _, count, _ in key]
        owners = np.repeat(np.arange(len(steps)), samples)
        row_of = rows[owners]
        after = _tokens_after(steps, queries, owners)
        records = self._sampling[row_of]
        records["row"] = query_ends[owners] - after - 1
        if max(samples) > 1:  # parallel sequences leave a prompt, or drafts are verified
            records["index"] = [spec.index for s in steps for spec in s.samples]
        special, masked = np.flatnonzero(self._is_special[row_of]).tolist(), np.flatnonzero(self._is_masked[row_of])
        starts, contexts = query_ends - queries, np.array([s.row_context for s in steps], np.int32)
        layout = Layout(
            key, rows, queries, starts, query_ends, samples, owners, after, records, special, masked, contexts
        )
        if len(steps) == plan.num_decodes and all(run_id for run_id, *_ in key):
            self._latest = layout
        return layout

    def _sizes(self, plan: StepPlan, layout: Layout, contexts: np.ndarray) -> StepSizes:
        return StepSizes(
            len(layout.rows),
            plan.num_decodes,
            int(layout.query_ends[-1]),
            len(layout.owners),
            layout.queries,
            contexts,
            is_shared=bool(plan.groups),
            is_scored=any(step.prompt_logprobs is not None for step in plan.sequences[plan.num_decodes :]),
            on_host=self._tables.on_host(layout.rows),
        )

    def _tokens(self, plan: StepPlan, layout: Layout) -> np.ndarray:
        """All token ids of the batch (int64). Tokens that only the device knows are `~n`, see the head of this
        module."""
        steps, decodes = plan.sequences, plan.num_decodes
        query_starts, query_ends = layout.query_starts, layout.query_ends
        follows = [s.follows for s in steps]
        if None not in follows and query_ends[-1] == decodes:
            return ~np.array(follows, np.int64)
        tokens = np.empty(int(query_ends[-1]), np.int64)
        decoded = int(query_ends[decodes - 1]) if decodes else 0
        tokens[:decoded] = list(chain.from_iterable([s.tokens for s in steps[:decodes]]))
        fill(tokens[decoded:], [s.tokens for s in steps[decodes:]])
        if tokens.min() >= 0 and tokens.max() < self._vocab_size:
            return tokens
        following = [place for place, sample in enumerate(follows) if sample is not None]
        tokens[query_starts[following]] = 0
        guessed = self._guessed(steps, query_starts) if tokens.min() < 0 else []
        guesses, tokens[guessed] = tokens[guessed], 0
        if tokens.min() < 0 or tokens.max() >= self._vocab_size:
            self._check_tokens(steps)
        tokens[guessed] = guesses
        tokens[query_starts[following]] = [~sample for sample in follows if sample is not None]
        return tokens

    def _guessed(self, steps: Sequence[SequenceStep], query_starts: np.ndarray) -> list[int]:
        """Places among the batch's tokens of drafts that the device fills in."""
        drafts = (
            (start + at, draft)
            for start, s in zip(query_starts, steps, strict=True)
            for at, draft in enumerate(s.drafts, 1)
        )
        return [place for place, draft in drafts if ~draft in self._guesses]

    def _check_tokens(self, steps: Sequence[SequenceStep]) -> None:
        for place, step in enumerate(steps):
            for token in step.tokens[step.follows is not None :]:
                if not 0 <= token < self._vocab_size and not (step.drafts and ~token in self._guesses):
                    raise StepError(place, f"token id {token} is outside the vocabulary of {self._vocab_size}")

    def _rows(self, steps: Sequence[SequenceStep]) -> np.ndarray:
        self._free += self._passing
        self._passing = []
        rows = [self._row_of.get(s.run_id, -1) for s in steps]
        if -1 in rows:
            self._assign_rows(steps, rows)
        return np.array(rows, np.int64)

    def _assign_rows(self, steps: Sequence[SequenceStep], rows: list[int]) -> None:
        self._latest = None
        here = {s.run_id for s in steps}
        for run_id in [run_id for run_id in self._row_of if run_id not in here]:
            self._free.append(self._row_of.pop(run_id))
        if len(self._free) < rows.count(-1):
            raise ValueError(f"{len(steps)} sequences in a step, but the runner was made for {len(self._tables)}")
        for place, step in enumerate(steps):
            if rows[place] < 0:
                rows[place] = row = self._free.pop()
                self._tables.forget(row)
                self._is_known[row] = False
                if step.run_id:
                    self._row_of[step.run_id] = row
                else:
                    self._passing.append(row)

    def _learn(self, steps: Sequence[SequenceStep], rows: np.ndarray) -> None:
        for place in np.flatnonzero(~self._is_known[rows]).tolist():
            specs, row = steps[place].samples, rows[place]
            if specs:
                self._sampling[row] = _record(specs[0], self._vocab_size)
                self._is_special[row] = is_special = _may_be_special(specs)
                self._is_masked[row] = specs[0].masked and not is_special
                self._is_known[row] = True


def filtered_places(words: np.ndarray, vocab_size: int) -> np.ndarray:
    """Places of the samples of a packed step with top-k, top-p or min-p."""
    samples, at = words[HEADER_SAMPLES], words[HEADER_SAMPLE_AT]
    records = words[at : at + samples * SAMPLE_WORDS].view(SAMPLE)
    by_rank = (records["top_k"] > 0) & (records["top_k"] < vocab_size)
    filters = by_rank | (records["top_p"] < 1.0) | (records["min_p"] > 0.0)
    return np.flatnonzero(filters & (records["temperature"] > 0.0))


def _without_sequences(plan: StepPlan) -> PackedStep:
    none = np.zeros(0, np.int32)
    sizes = StepSizes(0, 0, 0, 0, none, none, is_shared=False, is_scored=False, on_host=none)
    moves = plan.copies, plan.swap_out, plan.swap_in, plan.uses_swapped_in, plan.state_out, plan.state_in
    return PackedStep(none, sizes, None, [], none.astype(np.int64), [], [], *moves, plan.windows)


def _tokens_after(steps: Sequence[SequenceStep], queries: np.ndarray, owners: np.ndarray) -> np.ndarray | int:
    """Number of tokens of its sequence behind the row that each sample reads; 0 for all where they read the last."""
    if queries.max() == 1 or not any(s.sample_rows for s in steps):
        return 0
    rows = np.fromiter(chain.from_iterable(s.rows for s in steps), np.int32, len(owners))
    return np.asarray(queries[owners] - 1 - rows)


def _special_rows(steps: Sequence[SequenceStep], places: list[int], query_starts: np.ndarray) -> list[SpecialRow]:
    if not places:
        return []
    samples = [(owner, number) for owner, s in enumerate(steps) for number in range(len(s.samples))]
    rows = []
    for place in places:
        owner, number = samples[place]
        step = steps[owner]
        follows = -1 if step.follows is None else int(query_starts[owner])
        rows.append(SpecialRow(place, step.sample_row(number), follows))
    return rows


def _record(spec: SampleSpec, vocab_size: int) -> tuple[int | float, ...]:
    p = spec.params
    return p.seed, 0, spec.index, 0, p.temperature, min(p.top_k, vocab_size), p.top_p, p.min_p


def _may_be_special(specs: Sequence[SampleSpec]) -> bool:
    """True if a sequence can ever need more than temperature, filters and a mask. A mask forbids by itself the tokens
    that `min_tokens` does."""
    p = specs[0].params
    penalised = p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
    listed = p.logprobs is not None or bool(p.logit_bias) or (p.min_tokens > 0 and not specs[0].masked)
    return penalised or listed or any(spec.candidates or spec.forbidden for spec in specs)
