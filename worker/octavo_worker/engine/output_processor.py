"""Processing of a step's result: tokens go to their sequences, and some of those end."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from math import isnan

from octavo_worker.contract.messages import TokenOutput
from octavo_worker.contract.step import Sampled, SequenceResult, SequenceStep, StepResult
from octavo_worker.engine.batch_manager import BatchManager
from octavo_worker.engine.beams.beams import Beams
from octavo_worker.engine.drafts import count_accepted
from octavo_worker.engine.grammar import GrammarError
from octavo_worker.engine.requests import Requests
from octavo_worker.engine.sequence import Sequence, State
from octavo_worker.engine.step_in_flight import StepInFlight


class OutputProcessor:
    """Takes over what a step computed. Results of sequences that ended since it was launched are dropped."""

    def __init__(self, batch: BatchManager, requests: Requests) -> None:
        self._kv = batch.kv
        self._block_size = batch.kv.cache.block_size
        self._batch = batch
        self._requests = requests
        self._beams = Beams(batch, requests)

    def take(self, step: StepInFlight, result: StepResult) -> None:
        plan, planned, answers = step.plan, step.sequences, result.sequences
        decodes = plan.num_decodes
        parts = zip(planned[:decodes], plan.sequences[:decodes], answers[:decodes], strict=True)
        for sequence, part, answer in parts:
            if sequence.state is State.FINISHED:
                continue
            if sequence.request.beam is not None:
                if sequence.state is State.RUNNING:  # else it was preempted meanwhile and will be asked again
                    self._beams.offer(sequence, answer.samples[0])
            elif part.drafts:
                rows = step.masked_rows.get(sequence, len(answer.samples))
                drafts = answer.drafts if part.wanted else part.drafts
                self._take_verified(sequence, len(part.drafts), drafts, answer.samples[:rows])
            else:
                self._append(sequence, answer.samples[0])
        chunks = zip(planned[decodes:], plan.sequences[decodes:], answers[decodes:], strict=True)
        for sequence, chunk, answer in chunks:
            self._take_chunk(sequence, chunk, answer)

    def _take_chunk(self, sequence: Sequence, step: SequenceStep, answer: SequenceResult) -> None:
        request = sequence.request
        if not request.sequences:
            return
        if any(isnan(scored.logprob) for scored in answer.prompt_logprobs):
            self._requests.fail_logits(request)
            return
        if step.prompt_logprobs is not None:
            self._requests.score(request, step.start, answer.prompt_logprobs)
        if step.end < sequence.length:
            return
        self._requests.start(request)
        if not step.samples:
            self._requests.end(request)
        elif request.beam is not None:
            if sequence.state is State.RUNNING:
                self._batch.running.hold(sequence)
                self._beams.offer(sequence, answer.samples[0])
        else:
            for spec, sampled in zip(step.samples, answer.samples, strict=True):
                if (decoding := request.sequences.get(spec.index)) is not None:
                    self._append(decoding, sampled)

    def _take_verified(self, sequence: Sequence, planned: int, drafts: Tokens[int], samples: list[Sampled]) -> None:
        """Take the tokens of a decode with drafts as if one step had given each: what comes behind an end is dropped.
        `planned` is for how many there was room, `samples` are those of the rows that count, the first of all at
        least."""
        accepted = count_accepted(drafts[: len(samples) - 1], [sampled.token for sampled in samples])
        if accepted < planned:
            self._kv.rewind(sequence, planned - accepted)
        if drafts and sequence.guesses is not None:
            sequence.guesses.seen = sequence.computed
            self._requests.verify(sequence, len(drafts), accepted)
        for sampled in samples[: accepted + 1]:
            if sequence.length % self._block_size == 0:  # all its tokens are computed
                self._kv.publish(sequence)
            self._append(sequence, sampled)
            if sequence.state is State.FINISHED:
                break
        else:
            self._kv.accept(sequence)

    def _append(self, sequence: Sequence, sampled: Sampled) -> None:
        """Report a new token, and what follows from it."""
        requests, request, token = self._requests, sequence.request, sampled.token
        if token < 0 or (sampled.logprob is not None and isnan(sampled.logprob.logprob)):
            requests.fail_logits(request)
            return
        try:
            sequence.append(token)
        except GrammarError as error:
            requests.fail_grammar(request, error)
            return
        requests.generated += 1
        reason = request.rules.finish_reason(token, len(sequence.output))
        if sequence.is_complete and reason != "stop":
            reason = "complete"
        requests.output.tokens.append(TokenOutput(request.id, sequence.indices[0], token, sampled.logprob, reason))
        if reason is not None:
            requests.end_sequence(sequence)
        elif sequence.computed % self._block_size == 0:
            self._turn_block(sequence)

    def _turn_block(self, sequence: Sequence) -> None:
        """A block is full, or will be once the step in flight is computed."""
        if self._requests.check_pool(sequence) and sequence.state is State.RUNNING:
            self._kv.publish(sequence)
