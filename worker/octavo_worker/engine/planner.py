"""Which sequences run in the next step, on which blocks."""

from __future__ import annotations

from itertools import islice

from octavo_worker.contract.step import SequenceStep
from octavo_worker.engine.batch_manager import Admission, BatchManager
from octavo_worker.engine.draft_planner import DraftPlanner
from octavo_worker.engine.requests import Requests
from octavo_worker.engine.scheduling.abreast import share
from octavo_worker.engine.scheduling.policy import SchedulingPolicy
from octavo_worker.engine.scheduling.time_share import TimeShare
from octavo_worker.engine.sequence import Request, Sequence, State
from octavo_worker.engine.step_in_flight import StepInFlight

FIRST_TOKENS = 2048
"""Prompt tokens that are enough for a step that begins while the device is idle: it computes them while the next step
is planned. Planning 8,192 tokens of many short prompts takes as long as computing hundreds."""


MOST_EXPECTING = 16
"""Requests that others pass in one plan, because they expect a state: to find the next one costs those before it."""


MOST_PAUSES = 8
"""Steps in a row that leave out what pauses for prompts: prompts may never end."""


PART_BESIDE = 8
"""Prompts that pause for a running request get one of so many parts of the budget: what comes next waits for the step
in flight, and for the one planned behind it."""


class Planner:
    """Builds a step in this order:

    0. Preempt the policy's victims, last in order first, until those that wait for them fit: as many as can begin in
       this step.
    1. Every decoding sequence gets its token, so prompts never delay a decode. An oversized sequence that has used its
       share of the time rests while others decode. Those that the policy lets pause for a prompt are left out of steps
       that compute one, but of no more than some in a row: its first token comes by so much sooner. Their prompts are
       left out of these steps, too, and get a part of the budget while a request runs that they pause for.
    2. `token_budget` more tokens go to prompts in the policy's order: running prompts continue, waiting ones are
       admitted when their turn comes. Decodes take nothing of the budget: otherwise a prompt as long as the budget
       would take two steps beside a single decode. Up to `abreast` prompts share the budget evenly. No sequence
       overtakes one that finds no slot or no blocks. Admission takes the blocks of all present tokens, not of the
       output to come; the policy may hold a request back until there is room to grow in.
    3. Decodes get drafts, if there is speculation and no step is in flight.

    When a decode finds no block, the policy's victim is preempted with all its sequences: parallel samples and beams
    are preempted and restored as one gang. Samples that are alone in the batch shrink instead, from the last index on;
    beams that are alone and do not fit fail. A group gets the blocks for its next tokens at once, so the order of
    planning guarantees that a victim has not been planned yet. Blocks freed by a swap can be used once the step is
    over; a sequence that needs them sits out until then. A step that preempts admits nothing. A preempted request
    returns only when a block is left over for every running sequence: no sequence is preempted again before a block's
    worth of tokens.

    Planning advances every sequence as if the step were computed already, so that the next one can be planned while
    this one runs: its decodes then follow samples that are not known yet. Sequences that certainly end with the token
    in flight are left out of it. Those that end for another reason are computed once more in vain. Requests that need
    their tokens before they can continue (see `Request.needs_tokens`) sit out one plan; the others run ahead.

    All work is incremental: a step costs its sequences and new tokens, never the length of contexts or of the queue.
    """

    def __init__(
        self,
        batch: BatchManager,
        requests: Requests,
        policy: SchedulingPolicy,
        time_share: TimeShare,
        token_budget: int,
        drafts: DraftPlanner | None = None,
        abreast: int = 1,
    ) -> None:
        self._batch = batch
        self._policy = policy
        self._time_share = time_share
        self._requests = requests
        self._kv = batch.kv
        self._pool = batch.kv.pool
        self._block_size = batch.kv.cache.block_size
        self._running = batch.running
        self._token_budget = token_budget
        self._drafts = drafts
        self._abreast = abreast
        self._is_expected = False  # a request of the plan before waits for the state of one that runs
        self._sitting_out = False  # a sequence waits for blocks that the step in flight frees
        self._pauses = 0  # plans in a row that left sequences out for a prompt
        self._refused: Request | None = None  # it found no room in the plan before

    def plan(self, step: StepInFlight, *, ahead: bool) -> None:
        """Fill in the next step. `ahead`: another one is in flight."""
        self._sitting_out, self._is_expected = False, bool(self._batch.expecting)
        self._batch.expecting.clear()
        self._batch.make_way(step, self._token_budget)
        preemptions = self._kv.decisions.total()
        prompt = self._prompt_to_begin() if self._pauses < MOST_PAUSES else None
        paused = self._plan_decodes(step, ahead, prompt)
        admit = self._kv.decisions.total() == preemptions
        least = 0 if ahead or step.steps else max(0, self._token_budget - FIRST_TOKENS)
        paused |= self._plan_prompts(step, least, admit, prompt)
        if paused and step.is_empty:  # the prompt found no room
            paused = self._plan_decodes(step, ahead)
            self._plan_prompts(step, least, admit)
        self._pauses = self._pauses + 1 if paused else 0
        while not ahead and self._is_stuck(step):
            self._preempt_last(step)
            self._plan_prompts(step, least, False)
        self._batch.foresee(step)
        self._leave_prompts(step)
        if self._drafts is not None and not ahead:
            self._drafts.extend(step)
        self._kv.seal(step)

    # Decodes

    def _plan_decodes(self, step: StepInFlight, ahead: bool, prompt: Request | None = None) -> bool:
        resting = self._time_share.resting
        paused = self._plan_awake(step, resting, prompt)
        if resting and not ahead and not step.steps:
            self._plan_awake(step, False, prompt)
        step.num_decodes = len(step.steps)
        if self._kv.states is not None:
            for sequence in step.sequences:
                self._kv.states.advance(sequence, sequence.computed, step)
        return paused

    def _prompt_to_begin(self) -> Request | None:
        """The first request whose prompt this step is likely to compute."""
        head, running = self._batch.next(), self._running.prefilling[:1]
        if head is not None and head.request is not self._refused and (not running or head.order < running[0].order):
            return head.request
        return running[0].request if running else None

    def _plan_awake(self, step: StepInFlight, resting: bool, prompt: Request | None = None) -> bool:
        """Plan all decodes. If `resting`, oversized sequences with company are left out, and with a `prompt` those that
        pause for it. Whether any do."""
        decoding, size, refs = self._running.decoding, self._block_size, self._pool.refs
        windows = self._kv.windows
        steps, planned = step.steps, step.sequences
        position, paused = 0, False
        while position < len(decoding):  # preemption shortens the list from its end
            sequence = decoding[position]
            request = sequence.request
            if prompt is not None and self._policy.pauses(request, prompt):
                paused = True
                position += 1
                continue
            if resting and request.oversized and self._has_company(request):
                position += 1
                continue
            if len(request.sequences) > 1 or request.needs_tokens:
                position = self._plan_group(position, step)  # which alone share states
                continue
            start = sequence.computed
            if start >= request.final:
                position += 1
                continue
            slot = start // size
            blocks = sequence.table.blocks
            if slot == len(blocks) or refs[blocks[slot]] > 1 or (windows is not None and windows.grows(sequence, slot)):
                if not self._make_room([sequence], step):
                    position += sequence.state is State.RUNNING
                    continue
                self._kv.make_writable(sequence, start, step)
            position += 1
            steps.append(sequence.decode(len(steps)))
            planned.append(sequence)
            if (start + 1) % size == 0:
                self._kv.publish(sequence)
        return paused

    def _has_company(self, oversized: Request) -> bool:
        """True if it shares the device's time with a request that decodes beside it."""
        others = (sequence.request for sequence in self._running.decoding if sequence.request is not oversized)
        return any(self._policy.rests(oversized, other) for other in others)

    def _plan_group(self, position: int, step: StepInFlight) -> int:
        """Plan the decodes of a request from `position` on, all or none. Returns the position after them."""
        decoding = self._running.decoding
        request = decoding[position].request
        if request.needs_tokens and decoding[position].awaits_token:
            return position + len(_members_from(decoding, position, request))
        while members := _members_from(decoding, position, request):
            going = [member for member in members if member.computed < request.final]
            if not self._make_room(going, step):
                return position + len(_members_from(decoding, position, request))
            if all(member.state is State.RUNNING for member in members):
                break
        for member in going:
            self._kv.make_writable(member, member.computed, step)
            step.add(member, member.decode(len(step.steps)))
            self._kv.publish(member)
        return position + len(members)

    def _make_room(self, members: list[Sequence], step: StepInFlight) -> bool:
        """Preempt others until every member can take its next block. False if no member can run in this step: they were
        preempted themselves, or the blocks that they need are still being copied. True if only some were preempted."""
        kv = self._kv
        needed = kv.growth(members)
        if needed.blocks or needed.windows:
            kv.offload(members, needed.blocks, step)
        while any(needed) and (self._sitting_out or kv.lacks(needed)):
            if self._sitting_out or not kv.lacks(needed, soon=True):
                self._sitting_out = True
                return False
            self._preempt_last(step)
            if any(member.state is not State.RUNNING for member in members):
                return members[0].state is State.RUNNING
        return True

    def _preempt_last(self, step: StepInFlight) -> None:
        too_large = self._batch.preempt_last(step)
        if too_large is not None:
            self._requests.fail_beams(too_large)

    # Prompts

    def _plan_prompts(self, step: StepInFlight, least: int, admit: bool, prompt: Request | None = None) -> bool:
        """Spend the budget on prompts until no more than `least` of it is left. With a `prompt` those that pause for it
        are left out, which are the last in order. Whether any are."""
        prefilling, budget = self._running.prefilling, self._token_budget
        position = 0
        while budget > least:
            running = prefilling[position] if position < len(prefilling) else None
            waiting = self._batch.next() if admit else None
            admits = waiting is not None and (running is None or waiting.order < running.order)
            following = waiting if admits else running
            if following is None:
                break
            if prompt is not None and self._policy.pauses(following.request, prompt):
                return True
            if self._is_beside_higher(following.request):
                budget, least = min(budget, max(1, self._token_budget // PART_BESIDE)), 0
            if admits:
                admit = self._admit(following.request, step) and len(self._batch.expecting) < MOST_EXPECTING
            else:
                budget -= self._plan_chunk(following, step, self._part(following, position, budget, admit))
                position += 1
        return False

    def _part(self, prompt: Sequence, position: int, budget: int, admit: bool) -> int:
        """Tokens of the budget for a prompt at `position`, as others may share it."""
        if self._abreast - position < 2:
            return budget
        others = self._behind(prompt, position, admit)
        return share(prompt.length - prompt.computed, budget, others, self._abreast - position)

    def _behind(self, prompt: Sequence, position: int, admit: bool) -> int:
        """Prompts behind one at `position` that may share the budget with it: none that would pause for it, or is
        likely to wait for the state that it leaves."""
        running = self._running.prefilling[position + 1 : position + self._abreast]
        waiting = islice(self._batch.waiting, self._abreast) if admit and not self._is_expected else ()
        return sum(not self._policy.pauses(other.request, prompt.request) for other in (*running, *waiting))

    def _is_beside_higher(self, request: Request) -> bool:
        heads = (kind[0].request for kind in (self._running.decoding, self._running.prefilling) if kind)
        return any(self._policy.pauses(request, head) for head in heads)

    def _is_stuck(self, step: StepInFlight) -> bool:
        """True if all that runs are prompts that find no block to continue."""
        return bool(self._running.prefilling) and step.is_empty

    def _admit(self, request: Request, step: StepInFlight) -> bool:
        """True if the head left the queue, so that the next request may be tried."""
        admission = self._batch.admit(request, step)
        self._refused = request if admission in (Admission.LATER, Admission.EXPECTS) else None
        if admission is Admission.NEVER:
            self._requests.fail_beams(request)
        return admission is not Admission.LATER

    def _plan_chunk(self, sequence: Sequence, step: StepInFlight, budget: int) -> int:
        """Compute up to `budget` tokens that are known but not computed. Returns how many. Their blocks are there since
        admission; sliding and oversized sequences take theirs now, as far as there are any."""
        request, start, states = sequence.request, sequence.computed, self._kv.states
        length = sequence.length
        if states is not None and not states.make_writable(sequence):
            return 0
        sequence.computed = end = self._kv.extend(sequence, min(length, start + budget), step)
        if end == start:
            return 0
        tokens = sequence.slice(start, end)
        is_scored = request.prompt_scorer is sequence and start < len(request.prompt) - 1
        chunk = SequenceStep(
            tokens,
            start,
            sequence.table.blocks,
            sequence.specs() if end == length and request.rules.limit > 0 else (),
            run_id=sequence.run_id,
            prompt_logprobs=request.sampling.prompt_logprobs if is_scored else None,
            targets=request.prompt[start + 1 : end + 1] if is_scored else (),
        )
        self._kv.publish(sequence)
        step.add(sequence, chunk)
        if states is not None:
            states.snapshots.want(sequence, states.advance(sequence, end, step))
        return end - start

    def _leave_prompts(self, step: StepInFlight) -> None:
        """Let prompts that this step completes decode from the next one on. Beams wait for its candidates."""
        samples = first = step.num_decodes
        for sequence, chunk in zip(step.sequences[first:], step.steps[first:], strict=True):
            if sequence.computed == sequence.length and sequence.request.beam is None:
                for sample, decoding in enumerate((sequence, *self._batch.fork(sequence)), samples):
                    decoding.prepare_decode(sample)
            samples += len(chunk.samples)


def _members_from(decoding: list[Sequence], position: int, request: Request) -> list[Sequence]:
    """The decoding sequences of `request`, which begin at `position`."""
    end = position
    while end < len(decoding) and decoding[end].request is request:
        end += 1
    return decoding[position:end]
