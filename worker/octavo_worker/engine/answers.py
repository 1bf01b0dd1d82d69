"""What the model said: tokens go to their sequences, prompts become decodes, ends are ends."""

from __future__ import annotations

from octavo_worker.engine.beams import Beams
from octavo_worker.engine.plan import Sampled, SequenceResult, SequenceStep, StepPlan, StepResult
from octavo_worker.engine.requests import Requests
from octavo_worker.engine.roster import Roster
from octavo_worker.engine.sequence import Sequence, State
from octavo_worker.messages import TokenOutput


class Answers:
    """Takes over what a step computed."""

    def __init__(self, roster: Roster, requests: Requests) -> None:
        self._running = roster.running
        self._requests = requests
        self._beams = Beams(roster, requests)

    def take(self, plan: StepPlan, planned: list[Sequence], result: StepResult) -> None:
        """`planned` are the sequences of the plan's steps, in their order."""
        for position, (sequence, answer) in enumerate(zip(planned, result.sequences, strict=True)):
            if sequence.state is not State.RUNNING:  # ended earlier in this loop, with its request
                continue
            if position >= plan.num_decodes:
                self._take_chunk(sequence, plan.sequences[position], answer)
                continue
            sequence.computed += 1
            if sequence.request.beam is not None:
                self._beams.offer(sequence, answer.samples[0])
            elif self._append(sequence, answer.samples[0]):
                sequence.advance_decode()

    def _take_chunk(self, sequence: Sequence, step: SequenceStep, answer: SequenceResult) -> None:
        request = sequence.request
        sequence.computed += len(step.tokens)
        if request.prompt_scorer is sequence and request.prompt_logprobs is not None:
            request.prompt_logprobs.extend(answer.prompt_logprobs)
        if sequence.computed < sequence.length:
            return
        self._requests.start(sequence)
        if not step.samples:
            self._requests.end(request)
        elif request.beam is not None:
            self._running.hold(sequence)
            self._beams.offer(sequence, answer.samples[0])
        else:
            tokens = {spec.index: token for spec, token in zip(step.samples, answer.samples, strict=True)}
            for decoding in (sequence, *self._running.fork(sequence)):
                if decoding.state is State.RUNNING and self._append(decoding, tokens[decoding.indices[0]]):
                    decoding.prepare_decode()

    def _append(self, sequence: Sequence, sampled: Sampled) -> bool:
        """Report a new token. Whether the sequence goes on after it."""
        requests, request, token = self._requests, sequence.request, sampled.token
        output = sequence.output
        output.append(token)
        requests.generated += 1
        reason = request.rules.finish_reason(token, len(output))
        requests.output.tokens.append(TokenOutput(request.id, sequence.indices[0], token, sampled.logprob, reason))
        if reason is not None:
            requests.end_sequence(sequence)
            return False
        return requests.check_pool(sequence)
