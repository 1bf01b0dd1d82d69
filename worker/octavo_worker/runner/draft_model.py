"""A smaller model in the same engine, which guesses what the target says next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor

from octavo_kernels import ops
from octavo_worker.contract.step import UNKNOWN, SampleRow, SequenceStep, StepPlan
from octavo_worker.model.batch import Batch, ragged_batch
from octavo_worker.model.causal_model import CacheConfig, CausalModel, empty_cache, in_pools, layer_caches, layout_of
from octavo_worker.model.transfer import on_device
from octavo_worker.runner.sampler import draw


@dataclass(frozen=True, slots=True)
class DraftSizes:
    """`context`: the tokens of a sequence that a draft model can see; `budget`: those that it catches up in a step;
    `vocab_size`: the width of the target's logits; `first_host_block`: the first id of the host's blocks."""

    context: int
    budget: int
    vocab_size: int
    first_host_block: int


class DraftModel:
    """Draws drafts with the noise and the options of the samples that verify them: where both models expect about the
    same, they choose the same, at any temperature.

    Its KV cache has the target's block ids, so tables, prefixes, forks and rewinds are its own, too; what is copied or
    swapped there is copied and swapped here. But it computes nothing until a sequence wants drafts, and then all that
    is missing, its budget a step at most: prompts, tokens of steps without drafts, and the last one of a window that
    was right to its end. `_filled` says how many tokens at the beginning of each block it has computed since
    the target wrote them: only those count. What is stale all the same costs acceptance, never a token.

    Positions from its context on, and sequences with blocks on the host, which it could not fill, get no drafts.
    """

    def __init__(
        self,
        model: CausalModel,
        cache: CacheConfig,
        sizes: DraftSizes,
        place: Callable[[Batch], Batch] | None = None,
    ) -> None:
        """`cache` is the target's, `dtype` apart. `place` readies a batch for the model's device."""
        self.model = model
        self._block_size, self._context, self._budget = cache.block_size, sizes.context, sizes.budget
        self._vocab_size = sizes.vocab_size
        self._first_host_block = sizes.first_host_block
        self._place = place
        pools = empty_cache(model, cache)
        self._kv_cache, self._host_cache = pools.device, pools.host
        self._filled = bytearray(sizes.first_host_block + cache.num_host_blocks)
        self._filled[0] = cache.block_size  # what lies left of the window is never missing
        self._full: dict[int, int] = {}  # by run: leading blocks that are known to be filled
        layout = layout_of(model, cache.block_size, cache.dtype)
        model.bind(layer_caches(pools.blocks, layout), cache.block_size, sizes.context)

    def of_plan(self, plan: StepPlan) -> StepPlan:
        """Do what a plan does with blocks here, too, and fill in its drafts: the plan itself if it wants none."""
        self._move(plan)
        sequences = self.fill_in(plan.sequences)
        wants_none = all(step is planned for step, planned in zip(sequences, plan.sequences, strict=True))
        return plan if wants_none else replace(plan, sequences=sequences)

    def _move(self, plan: StepPlan) -> None:
        """Swap and copy what the target does, as far as there is anything in it."""
        if swap_in := self._moved(plan.swap_in):
            ops.swap_blocks(self._host_cache, self._kv_cache, in_pools(swap_in, self._first_host_block))
        if swap_out := self._moved(plan.swap_out):
            ops.swap_blocks(self._kv_cache, self._host_cache, in_pools(swap_out, self._first_host_block))
        if copies := self._moved(plan.copies):
            ops.copy_blocks(self._kv_cache, on_device(copies, torch.int64, self.model.device))

    def _moved(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Pairs whose source holds anything; their targets hold as much from now on."""
        filled = self._filled
        for source, target in pairs:
            filled[target] = filled[source]
        return [(source, target) for source, target in pairs if filled[source]]

    @torch.inference_mode()
    def fill_in(self, steps: Sequence[SequenceStep]) -> list[SequenceStep]:
        """The steps with the drafts that they want in their places. One for which too much is missing has fewer samples
        and no drafts."""
        self._note_writes(steps)
        found = list(steps)
        windows = [Window(place, step) for place, step in enumerate(steps) if step.wanted]
        if windows:
            self._full = {w.step.run_id: self._full.get(w.step.run_id, 0) for w in windows if w.step.run_id}
            self._draw(windows, self._budget)
        for window in windows:
            found[window.place] = window.verified()
        return found

    @property
    def guesses_now(self) -> bool:
        """True if the step that was filled in last waits for `guess`."""
        return False

    def guess(self) -> None:
        """Starts what `fill_in` has left to the device, once the message of that step is unpacked there."""

    def pass_seconds(self, steps: Sequence[SequenceStep]) -> float:
        """Seconds of a pass that guesses a token for each of `steps`, which want one."""
        began = time.perf_counter()
        self.fill_in(steps)
        return max(time.perf_counter() - began, 1e-9)

    def wait(self) -> None:
        """Until all that was started is computed."""

    def _note_writes(self, steps: Sequence[SequenceStep]) -> None:
        """Marks as missing here the tokens that the target writes in this step."""
        size, filled = self._block_size, self._filled
        for step in steps:
            slot, offset = divmod(step.start, size)
            table = step.block_table
            filled[table[slot]] = min(filled[table[slot]], offset)
            for block in table[slot + 1 : -(-step.end // size)]:
                filled[block] = 0

    def _draw(self, windows: Sequence[Window], room: int) -> None:
        """A pass computes what is missing, `room` tokens at most, and chooses the first tokens, each of the others one
        more."""
        parts, live = list[SequenceStep](), list[Window]()
        for window in self._in_turn(windows):
            part = self._missing(window.step, room)
            if part is None:
                break
            room -= len(part.tokens)
            parts.append(part)
            if part.end > window.step.start:
                live.append(window)  # only the last part may end before
        while parts:
            tokens = self._compute(parts, [window.step.sample_row(len(window.drafts)) for window in live])
            for window, token in zip(live, tokens, strict=True):
                window.take(token)
            live = [window for window in live if len(window.drafts) < window.wanted]
            parts = [window.next_part() for window in live]

    def _in_turn(self, windows: Sequence[Window]) -> list[Window]:
        """Windows that may have drafts. Sequences that miss least come first: a long prompt keeps no other from being
        drafted."""
        drafted = [window for window in windows if self._is_drafted(window.step)]
        return sorted(drafted, key=lambda window: window.step.start - self._known(window.step))

    def _is_drafted(self, step: SequenceStep) -> bool:
        return step.end <= self._context and step.block_table[0] < self._first_host_block

    def _missing(self, step: SequenceStep, room: int) -> SequenceStep | None:
        """The tokens of a decode up to its last known one that are to be computed, at most `room` of them."""
        start, spec = self._known(step), step.samples[0]
        prompt = len(spec.prompt)
        behind = spec.output[max(0, start - prompt) : max(0, step.start - prompt)]
        tokens = [*spec.prompt[start : step.start], *behind, step.tokens[0]][:room]
        return SequenceStep(tokens, start, step.block_table) if tokens else None

    def _known(self, step: SequenceStep) -> int:
        """How many tokens at a decode's beginning are computed."""
        size, filled, table = self._block_size, self._filled, step.block_table
        full, last = self._full.get(step.run_id, 0), step.start // size
        while full < last and filled[table[full]] == size:
            full += 1
        if step.run_id:
            self._full[step.run_id] = full
        return full * size + filled[table[full]]

    def _compute(self, parts: Sequence[SequenceStep], rows: Sequence[SampleRow]) -> list[int]:
        """Compute the parts of some sequences, and choose what follows each of the first ones by its row."""
        narrow = self.model.vocab_size
        if narrow < self._vocab_size:  # ids that only the target has rows for are no text
            parts = [replace(part, tokens=[min(token, narrow - 1) for token in part.tokens]) for part in parts]
        batch = ragged_batch(parts, self._block_size, narrow)
        last = batch.query_start[1 : len(rows) + 1].long() - 1
        if self._place is not None:
            batch, last = self._place(batch), last.to(self.model.device)
        features = self.model.forward(batch, last if rows else batch.positions[:1] * 0)
        self._note_parts(parts)
        if not rows:
            return []
        logits = self.as_target(self.model.logits(features))
        return [max(0, token) for token in draw(logits.float().contiguous(), rows).tolist()]

    def as_target(self, logits: Tensor) -> Tensor:
        """Logits as wide as the target's."""
        narrow = self.model.vocab_size
        if narrow == self._vocab_size:
            return logits
        return F.pad(logits[:, : self._vocab_size], (0, max(0, self._vocab_size - narrow)), value=-torch.inf)

    def _note_parts(self, parts: Sequence[SequenceStep]) -> None:
        size, filled = self._block_size, self._filled
        for part in parts:
            first, last = part.start // size, (part.end - 1) // size
            for block in part.block_table[first:last]:
                filled[block] = size
            filled[part.block_table[last]] = part.end - last * size


class Window:
    """A decode that wants drafts, with those that were drawn so far."""

    __slots__ = ("drafts", "place", "step", "wanted")

    def __init__(self, place: int, step: SequenceStep) -> None:
        self.place, self.step, self.wanted = place, step, step.wanted
        self.drafts: list[int] = []

    def take(self, token: int) -> None:
        self.drafts.append(token)
        unknown = (UNKNOWN,) * (self.wanted - len(self.drafts))
        self.step = replace(self.step, tokens=(self.step.tokens[0], *self.drafts, *unknown))

    def take_all(self, tokens: Sequence[int]) -> None:
        self.drafts += tokens
        self.step = replace(self.step, tokens=(self.step.tokens[0], *self.drafts))

    def next_part(self) -> SequenceStep:
        """Its latest draft alone."""
        return SequenceStep(self.drafts[-1:], self.step.start + len(self.drafts), self.step.block_table)

    def verified(self) -> SequenceStep:
        """With all drafts, or with none."""
        step = self.step
        return step if self.drafts else replace(step, tokens=step.tokens[:1], samples=step.samples[:1], sample_rows=())
