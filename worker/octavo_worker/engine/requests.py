"""The requests that have not ended, and the messages about them to the agent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from octavo_worker.contract.messages import (
    AddRequest,
    DraftsVerified,
    EngineStats,
    FailureCode,
    Logprob,
    RequestFailed,
    RequestPromoted,
    RequestStarted,
    SequenceInput,
    StepOutput,
    TokenOutput,
)
from octavo_worker.engine.batch_manager import BatchManager
from octavo_worker.engine.drafts import Guesses, Proposer
from octavo_worker.engine.grammar import Barred, GrammarError, Matcher, Vocabulary
from octavo_worker.engine.scheduling.admission import Limits, refusal, shortage
from octavo_worker.engine.scheduling.policy import SchedulingPolicy
from octavo_worker.engine.scheduling.timers import Timers
from octavo_worker.engine.sequence import NOT_ALLOWED, Request, Sequence, State, by_order
from octavo_worker.engine.stop import StopRules


class Requests:
    """Requests come in by `add` and end, with everything they hold, by `end`, `fail` or with their last sequence.

    `output` collects the messages to the agent. `generated`, `drafted` and `accepted` count tokens. With a `proposer`
    sequences have guesses, but beams.
    """

    def __init__(
        self,
        batch: BatchManager,
        limits: Limits,
        policy: SchedulingPolicy,
        *,
        proposer: Proposer | None = None,
        aging_s: float = 30.0,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limits = limits
        self.output = StepOutput([], [], [], EngineStats())
        self.generated = self.drafted = self.accepted = 0
        self._proposer = proposer
        self._batch = batch
        self._policy = policy
        self._living: dict[str, Request] = {}
        self._arrivals = 0
        self._clock = clock
        self._timer = timer
        self._deadlines = Timers(self._living)
        self._aging = Timers(self._living)
        self._aging_s = aging_s

    def __len__(self) -> int:
        return len(self._living)

    def find(self, request_id: str) -> Request | None:
        return self._living.get(request_id)

    def sequences(self) -> set[Sequence]:
        """All sequences that have not ended."""
        return {sequence for request in self._living.values() for sequence in request.sequences.values()}

    def holders(self) -> list[Sequence]:
        """The sequences that have blocks, in the order in which their requests came."""
        found = (sequence for request in self._living.values() for sequence in request.sequences.values())
        return [sequence for sequence in dict.fromkeys(found) if sequence.table.blocks]

    def take_output(self) -> StepOutput:
        """Output gathered since the last call."""
        output, self.output = self.output, StepOutput([], [], [], EngineStats())
        output.resumed, self._batch.resumed = self._batch.resumed, []
        for request in (preempted := self._batch.take_preempted()):
            request.waits_since = self._clock()
        output.preempted = [request.id for request in preempted]
        return output

    # Beginnings

    def add(self, message: AddRequest, matchers: list[Matcher] | None = None) -> None:
        """Queue a request, or refuse it. With a grammar each of its sequences has a matcher, in their order."""
        if message.id in self._living:
            raise ValueError(f"request {message.id} is still running: abort it before adding it again")
        failure = refusal(message, self.limits)
        if failure is not None:
            self.output.failed.append(failure)
            return
        rules = StopRules.of(
            message.sampling,
            prompt_len=len(message.prompt),
            max_model_len=self.limits.max_model_len,
            vocab_size=self.limits.vocab_size,
            ends=matchers[0].vocabulary.stop_ids if matchers else frozenset(),
        )
        self._arrivals += 1
        request = Request(message, rules, self._arrivals, self.limits.room(message), self._timer())
        request.order = self._policy.order(request)
        published = max(len(sequence.tokens) for sequence in message.sequences)
        request.oversized = self.limits.capacity.is_oversized(len(message.prompt) + published)
        if matchers:
            _bar(request, matchers[0].vocabulary)
        self._living[request.id] = request
        if request.deadline is not None:
            self._deadlines.add(request, request.deadline)
        if self._policy.promote(request) is not None:
            request.waits_since = self._clock()
            self._aging.add(request, request.waits_since + self._aging_s)
        for sequence in self._first_sequences(request, message.sequences, matchers or []):
            request.sequences.update(dict.fromkeys(sequence.indices, sequence))
            self._batch.waiting.push(sequence)

    def _first_sequences(
        self, request: Request, inputs: list[SequenceInput], matchers: list[Matcher]
    ) -> list[Sequence]:
        """One sequence for each that has published tokens, one in common for those that start from the prompt."""
        outputs = [([given.index], list(given.tokens)) for given in inputs if given.tokens]
        fresh = sorted(given.index for given in inputs if not given.tokens)
        if request.sampling.beam is not None:
            fresh = list(range(request.sampling.beam.width))
        if fresh:
            outputs.append((fresh, []))
        follows = {given.index: matcher for given, matcher in zip(inputs, matchers, strict=bool(matchers))}
        sequences = []
        for indices, output in outputs:
            matcher, guesses = follows.get(indices[0]), self._guesses(request, output)
            table, windows = self._batch.kv.new_tables()
            sequences.append(Sequence(request, indices, output, table, matcher, guesses, windows))
        return sorted(sequences, key=by_order)

    def _guesses(self, request: Request, output: list[int]) -> Guesses | None:
        if self._proposer is None or request.beam is not None or request.rules.limit < 1:
            return None
        return Guesses(self._proposer.begin(request.prompt, output, request.salt), output)

    def score(self, request: Request, start: int, logprobs: list[Logprob]) -> None:
        """Take log-probabilities of the prompt's tokens from `start` + 1 on. The sequence that computes them begins at
        the first token, and replaces the results of one that was aborted."""
        if request.prompt_logprobs is not None:
            request.prompt_logprobs[start + 1 :] = logprobs

    def start(self, request: Request) -> None:
        """A sequence has computed its prompt: report the request's start, once the log-probabilities that belong to the
        report are complete."""
        wanted = request.sampling.prompt_logprobs is not None
        if request.started or (wanted and len(request.prompt_logprobs or ()) < len(request.prompt)):
            return
        request.started = True
        started = RequestStarted(
            request.id, request.cached_tokens or 0, request.prompt_logprobs, queued_s=request.queued_s
        )
        request.prompt_scorer = request.prompt_logprobs = None
        self.output.started.append(started)

    def verify(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """A step has verified drafts of a sequence."""
        assert sequence.guesses is not None, "drafts of a sequence without guesses"
        sequence.guesses.observe(drafted, accepted)
        self.drafted += drafted
        self.accepted += accepted
        self.output.verified.append(DraftsVerified(sequence.request.id, drafted, accepted))

    # What is due

    def keep_time(self) -> None:
        """Fail the requests that are past their deadline, and promote those that have waited for long."""
        now = self._clock()
        for request in self._deadlines.take_due(now):
            self.fail(request, "deadline", "the job's deadline passed before it was finished")
        if due := self._aging.take_due(now):
            self._age(due, now)

    def _age(self, due: list[Request], now: float) -> None:
        """Promote requests that have waited for so long, as far as the policy lets them rise, and one of a class after
        the other: the prompts of several would keep first tokens of the class above waiting."""
        prefilling = {id(sequence.request) for sequence in self._batch.running.prefilling}
        risen, entering = Counter[int](), set[int]()
        for request in self._living.values():
            if request.has_risen:
                risen[request.base_priority] += request.rows
                if id(request) in prefilling or request.members(State.WAITING):
                    entering.add(request.base_priority)
        for request in due:
            again = self._aging_s
            if not request.members(State.RUNNING):
                again = request.waits_since + self._aging_s - now
                if again <= 0:
                    again = self._aging_s if self._promote(request, risen, entering, now) else self._aging_s / 8
            if self._policy.promote(request) is not None:
                self._aging.add(request, now + again)

    def _promote(self, request: Request, risen: Counter[int], entering: set[int], now: float) -> bool:
        """True if the request rose, beside those of its class that have risen already. One that has not risen yet waits
        until the prompts of these are computed."""
        kind, rows = request.base_priority, 0 if request.has_risen else request.rows
        if (rows and kind in entering) or not self._batch.promote(request, risen[kind]):
            return False
        risen[kind] += rows
        entering.add(kind)
        request.waits_since = now
        self.output.promoted.append(RequestPromoted(request.id, request.priority))
        return True

    # Ends

    def check_pool(self, sequence: Sequence) -> bool:
        """True if the sequence can go on, as an oversized one if necessary: its request fails if this worker's memory
        cannot hold it."""
        request, capacity = sequence.request, self.limits.capacity
        if missing := shortage(sequence.length, request, capacity):
            message = f"{sequence.length} tokens exceed {missing}, or lower max_tokens"
            self.fail(request, "pool_too_small", message)
            return False
        request.oversized = request.oversized or capacity.is_oversized(sequence.length)
        return True

    def fail_beams(self, request: Request) -> None:
        width = request.sampling.beam.width if request.sampling.beam else 0
        message = f"its {width} beams exceed this worker's KV memory"
        self.fail(request, "pool_too_small", f"{message}: give it a larger cache, lower beam_width or max_tokens")

    def fail_grammar(self, request: Request, error: GrammarError) -> None:
        """A grammar that cannot be followed is at fault, but not for a token that it does not allow."""
        if error.code == NOT_ALLOWED:
            self.fail(request, "step_failed", error.message)
        else:
            self.fail(request, "invalid_grammar", error.message, "grammar")

    def fail_logits(self, request: Request) -> None:
        message = "the model's logits are not numbers, they may have overflowed its dtype: try bfloat16 or float32"
        self.fail(request, "invalid_logits", message)

    def fail(self, request: Request, code: FailureCode, message: str, param: str | None = None) -> None:
        self.end(request)
        self.output.failed.append(RequestFailed(request.id, code, message, param))

    def finish(self, request: Request, found: list[tuple[list[int], str]]) -> None:
        """End a request whose sequences become known all at once, as (tokens, finish reason) by index."""
        for index, (tokens, reason) in enumerate(found):
            reasons = [None] * (len(tokens) - 1) + [reason]
            for token, why in zip(tokens, reasons, strict=True):
                self.output.tokens.append(TokenOutput(request.id, index, token, None, why))
            self.generated += len(tokens)
        self.end(request)

    def end(self, request: Request) -> None:
        for sequence in dict.fromkeys(request.sequences.values()):
            self.end_sequence(sequence)

    def end_sequence(self, sequence: Sequence) -> None:
        """End a sequence, whether it runs or waits; with the last one its request ends."""
        request = sequence.request
        if sequence.state is State.WAITING:
            self._batch.waiting.remove(sequence)
        self._batch.drop(sequence)
        for index in sequence.indices:
            del request.sequences[index]
        if not request.sequences:
            del self._living[request.id]


def _bar(request: Request, vocabulary: Vocabulary) -> None:
    ignored = vocabulary.stop_ids - set(request.sampling.stop_token_ids)
    request.barred = Barred(ignored)
    request.barred_early = Barred(request.rules.stop_ids)
