"""Beam searches on the running batch: hypotheses fork, continue and are dropped."""

from __future__ import annotations

from octavo_worker.contract.step import Sampled
from octavo_worker.engine.batch_manager import BatchManager
from octavo_worker.engine.beams.group import BeamGroup
from octavo_worker.engine.grammar import GrammarError
from octavo_worker.engine.requests import Requests
from octavo_worker.engine.sequence import Request, Sequence


class Beams:
    """Turns what a search chooses into sequences and block tables."""

    def __init__(self, batch: BatchManager, requests: Requests) -> None:
        self._batch = batch
        self._requests = requests

    def offer(self, member: Sequence, sampled: Sampled) -> None:
        """Take the candidates that follow one live hypothesis. With those of all, the search advances or ends."""
        request, beam = member.request, member.request.beam
        assert beam is not None
        if not beam.offer(member, sampled.candidates):
            return
        choices = beam.choose()
        if len(choices) == beam.search.width or (choices and member.matcher is not None):
            self._advance(request, beam, choices)
        elif not choices and len(found := beam.results()) == beam.num_results:
            self._requests.finish(request, [(hypothesis.tokens, hypothesis.reason) for hypothesis in found])
        elif not choices and found and member.matcher is not None:
            message = (
                f"the search found {len(found)} texts that the grammar allows: ask for fewer than {beam.num_results}"
            )
            self._requests.fail(request, "invalid_request", message, "n")
        else:  # NaN candidates continue nothing
            self._requests.fail_logits(request)

    def _advance(self, request: Request, beam: BeamGroup[Sequence], choices: list[tuple[Sequence, int]]) -> None:
        try:
            self._continue(request, beam, choices)
        except GrammarError as error:
            self._requests.fail_grammar(request, error)
        else:
            self._requests.output.progress.append(beam.progress(request.id))

    def _continue(self, request: Request, beam: BeamGroup[Sequence], choices: list[tuple[Sequence, int]]) -> None:
        """Each chosen parent continues as the first of its children, and the others fork from it. The members that were
        not chosen are dropped."""
        running = self._batch.running
        parents = dict.fromkeys(parent for parent, _ in choices)
        freed = [index for parent in parents for index in running.narrow(parent)]
        for member in beam.members:
            if member not in parents:
                freed += member.indices
                self._batch.drop(member)
        for index in freed:
            del request.sequences[index]
        beam.spare += freed
        beam.members = []
        for parent, _ in choices:
            child = self._batch.kv.fork(parent, beam.spare.pop()) if parent in beam.members else parent
            if child is not parent:
                running.join(child)
            beam.members.append(child)
        for member, (_, token) in zip(beam.members, choices, strict=True):
            running.unhold(member)
            member.append(token)
            member.prepare_decode()
        self._requests.check_pool(beam.members[0])
