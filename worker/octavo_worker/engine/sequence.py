"""One job inside the engine: a request, and the sequences that are generated for it."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence as Tokens
from enum import Enum
from operator import attrgetter

from octavo_worker.contract.messages import AddRequest, EngineSampling, Logprob
from octavo_worker.contract.step import UNKNOWN, SampleSpec, SequenceStep
from octavo_worker.engine.beams.group import BeamGroup
from octavo_worker.engine.beams.search import BeamSearch
from octavo_worker.engine.drafts import Guesses
from octavo_worker.engine.grammar import NONE_BARRED, GrammarError, Matcher
from octavo_worker.engine.states.live_state import LiveState
from octavo_worker.engine.stop import StopRules
from octavo_worker.memory.block_table import BlockTable

by_order = attrgetter("order")

_UNKNOWN = (UNKNOWN,)

NOT_ALLOWED = "not_allowed"
"""The code of an error about a token that should not have been chosen."""


class State(Enum):
    WAITING = 1
    RUNNING = 2
    FINISHED = 3


class Request:
    """A job: its prompt, its rules, and those of its sequences that have not ended.

    `sequences` is keyed by sequence index; several indices share one `Sequence` until they leave the prompt. With
    `beam` they are the live hypotheses of its search, and their indices mean nothing outside. The token at position
    `final` is the last one that its rules and `room`, the tokens that fit the memory at all, allow: it is never
    computed.

    `base_priority` is the class that the request came with, `priority` the one to which it has risen by waiting. One
    that is `resumed` goes before others of its class, as does a guest: its tenant runs less than others.
    `order` is its place among all requests, as the scheduling policy says. `arrived` is in seconds of the scheduler's
    timer, `arrival` counts requests; `max_new_tokens` are what its limits left it to generate then.

    `needs_tokens`: what it computes next depends on tokens in ways that the device does not know, as beams do. It is
    not planned ahead of its own step in flight.

    With a grammar, `barred` are the stop tokens that it ignores and `barred_early` those that may not come before
    `min_tokens`. `slow_masks` counts masks that took too long; it is `suspected` if others were computed together with
    its own when all of them did.
    """

    __slots__ = (
        "arrival",
        "arrived",
        "barred",
        "barred_early",
        "base_priority",
        "beam",
        "cached_tokens",
        "deadline",
        "final",
        "id",
        "is_guest",
        "max_new_tokens",
        "needs_tokens",
        "order",
        "oversized",
        "priority",
        "prompt",
        "prompt_logprobs",
        "prompt_scorer",
        "queued_s",
        "queued_since",
        "resumed",
        "rules",
        "salt",
        "sampling",
        "sequences",
        "slow_masks",
        "started",
        "suspected",
        "waits_since",
    )

    def __init__(self, message: AddRequest, rules: StopRules, arrival: int, room: int, arrived: float) -> None:
        self.id = message.id
        self.prompt: array[int] = message.prompt
        self.sampling: EngineSampling = message.sampling
        self.salt = message.salt
        self.base_priority = message.priority
        self.priority = message.priority if message.risen is None else message.risen
        self.resumed, self.is_guest = message.resumed, False
        self.deadline = message.deadline
        self.rules = rules
        self.final = min(len(message.prompt) + rules.limit - 1, room)
        published = min(len(sequence.tokens) for sequence in message.sequences)
        self.max_new_tokens = self.final + 1 - len(message.prompt) - published
        self.arrival = arrival
        self.arrived = arrived
        self.order: tuple[float, ...] = (arrival,)
        self.queued_since = time.monotonic()
        self.queued_s = 0.0  # until it was first given memory
        self.waits_since = 0.0  # by the scheduler's clock: since it came, was preempted or rose
        self.sequences: dict[int, Sequence] = {}
        self.beam: BeamGroup[Sequence] | None = None
        if message.sampling.beam is not None:
            self.beam = BeamGroup(BeamSearch(message.sampling.beam, rules), len(message.sequences))
        self.needs_tokens = self.beam is not None
        self.barred = self.barred_early = NONE_BARRED
        self.slow_masks = 0
        self.suspected = False
        self.oversized = False  # more than the device's memory holds: the rest of it is kept on the host
        self.started = False
        self.cached_tokens: int | None = None
        self.prompt_logprobs: list[Logprob | None] | None = None
        self.prompt_scorer: Sequence | None = None  # the sequence that computes the prompt's log-probabilities

    @property
    def has_risen(self) -> bool:
        """True if waiting has raised it above its class."""
        return self.priority < self.base_priority

    @property
    def rows(self) -> int:
        """Sequences of the batch that it is or is about to become."""
        return len(self.sequences)

    def members(self, state: State) -> list[Sequence]:
        """Its sequences in `state`, in their order."""
        found = (sequence for sequence in dict.fromkeys(self.sequences.values()) if sequence.state is state)
        return sorted(found, key=by_order)


class Sequence:
    """Tokens and memory of one sequence, or of several that have not left their common prompt yet.

    Parallel samples (n > 1) begin as one sequence with several `indices`: the prompt is computed once, the first
    tokens are sampled from the same logits, then `fork` gives each its own copy-on-write table. A sequence with
    published tokens (after a takeover) or after a preemption computes prompt and tokens alone; what its siblings share
    with it, it finds in the prefix cache.

    `computed` tokens have their keys and values in `table`, or will have once the steps in flight are computed; the
    others are to be computed. It `decodes` once its prompt is computed, until it has to be computed again. A decode may
    be planned before the token that it computes is known: `sample` says which sample of the step before chooses it.
    `samples` are what each of its decodes samples.

    `table` has its blocks of the first group, `windows` those of the second; None where there is one group.

    `digests` belong to the prefix cache: the root, then one for each full block whose content is known; `published`
    counts the blocks that were offered to it. The table of a waiting sequence is empty, but a swapped one's lists the
    host blocks that hold its `computed` tokens. The table of an oversized one that runs begins with host blocks.
    `live` is its state while it runs or is swapped; None where the model keeps no states.

    `output` only grows: a step that was planned refers to its beginning. A grammar's `matcher` has taken all of
    it, the `guesses` look at it when they are asked; None: it has no grammar, or is decoded without speculation.
    """

    __slots__ = (
        "_index",
        "_prompt_len",
        "computed",
        "decodes",
        "digests",
        "guesses",
        "indices",
        "live",
        "matcher",
        "order",
        "output",
        "peak",
        "published",
        "request",
        "run_id",
        "sample",
        "samples",
        "state",
        "table",
        "windows",
    )

    def __init__(
        self,
        request: Request,
        indices: list[int],
        output: list[int],
        table: BlockTable,
        matcher: Matcher | None = None,
        guesses: Guesses | None = None,
        windows: BlockTable | None = None,
    ) -> None:
        self.request = request
        self.indices = indices
        self._index = indices[0]
        self._prompt_len = len(request.prompt)
        self.reorder()
        self.output = output
        self.table, self.windows = table, windows
        self.matcher = matcher
        self.guesses = guesses
        self.live: LiveState | None = None
        self.digests: list[bytes] = []
        self.computed = 0
        self.published = 0
        self.peak = 0  # tokens that were computed before the last preemption
        self.decodes = False
        self.state = State.WAITING
        self.run_id = 0
        self.sample = 0
        self.samples: tuple[SampleSpec, ...] = ()

    def reorder(self) -> None:
        """Take the order that follows from the request's; the sequence must be in no sorted list."""
        self.order: tuple[float, ...] = (*self.request.order, self._index)

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.output)

    @property
    def awaits_token(self) -> bool:
        """True if the token that it computes next is still being chosen."""
        return self.computed >= self.length

    @property
    def width(self) -> int:
        """How many sequences of the batch this is or is about to become."""
        return len(self.indices)

    def slice(self, start: int, end: int) -> Tokens[int]:
        """Tokens `start` to `end` of prompt and output. Costs the tokens it returns."""
        prompt = self.request.prompt
        split = len(prompt)
        if start >= split:
            return self.output[start - split : end - split]
        if end <= split:
            return prompt[start:end]
        return prompt[start:] + array("I", self.output[: end - split])

    @property
    def is_swapped(self) -> bool:
        """True if it waits with its blocks on the host."""
        return self.state is State.WAITING and len(self.table.blocks) > 0

    def specs(self) -> tuple[SampleSpec, ...]:
        """Samples to draw once all present tokens are computed."""
        request, rules, is_masked = self.request, self.request.rules, self.matcher is not None
        forbidden, allowed_from = () if is_masked else rules.forbidden(0), self._prompt_len + rules.min_tokens
        if request.beam is not None:
            wanted, indices = request.beam.search.num_candidates, self.indices[:1]
        else:
            wanted, indices = 0, self.indices
        return tuple(
            SampleSpec(request.sampling, index, request.prompt, self.output, forbidden, allowed_from, wanted, is_masked)
            for index in indices
        )

    def append(self, token: int) -> None:
        """Take a new token. Raises GrammarError if its grammar does not allow it."""
        self.output.append(token)
        if self.matcher is not None and not self.matcher.take(token):
            message = f"token {token} was chosen, which the grammar does not allow"
            raise GrammarError(message, code=NOT_ALLOWED)

    @property
    def is_complete(self) -> bool:
        """True if a grammar allows nothing more."""
        return self.matcher is not None and self.matcher.is_finished

    def start_over(self) -> None:
        """Nothing of it is computed any more, nor of the scores that it was computing."""
        self.computed = self.published = 0
        self.decodes = False
        if self.request.prompt_scorer is self:
            self.request.prompt_scorer = None

    def prepare_decode(self, sample: int = 0) -> None:
        """Decode from now on. `sample` of the step in flight chooses the first token, unless it is known."""
        self.sample = sample
        self.samples = self.specs()

    def decode(self, sample: int) -> SequenceStep:
        """The step for the next token, which sample `sample` of its plan chooses. This runs for every sequence in every
        step, so it takes all but the changing fields as they are."""
        start, output = self.computed, self.output
        self.computed = start + 1
        if start < self._prompt_len + len(output):
            step = SequenceStep((output[-1],), start, self.table.blocks, self.samples, (), self.run_id)
        else:
            step = SequenceStep(_UNKNOWN, start, self.table.blocks, self.samples, (), self.run_id, self.sample)
        self.sample = sample
        return step

    def verify(self, decode: SequenceStep, drafts: Tokens[int]) -> SequenceStep:
        """The `decode` that was planned last, with drafts behind its token. Their blocks are in the table."""
        self.computed += len(drafts)
        rows = tuple(range(1 + len(drafts)))
        tokens = (*decode.tokens, *drafts)
        return SequenceStep(tokens, decode.start, self.table.blocks, self.samples * len(rows), rows, self.run_id)

    def common(self, other: Sequence, limit: int) -> int:
        """How many of the first `limit` blocks this one holds and offers that hold the same for the `other`. A digest
        stands for all that comes before it, so few of them are compared."""
        limit = 0 if self.table.start else min(limit, self.published, len(self.table.blocks))
        mine, others = self.digests, other.digests
        return bisect_left(range(1, limit + 1), True, key=lambda block: mine[block] != others[block])

    def fork(self, index: int) -> Sequence:
        """A running sibling that shares all computed tokens, but has no reference yet to those on the host."""
        matcher = None if self.matcher is None else self.matcher.copy()
        output = list(self.output)
        guesses = None if self.guesses is None else self.guesses.fork(output)
        windows = None if self.windows is None else self.windows.fork()
        child = Sequence(self.request, [index], output, self.table.fork(), matcher, guesses, windows)
        child.digests = list(self.digests)
        child.computed, child.published = self.computed, self.published
        child.state = State.RUNNING
        return child
