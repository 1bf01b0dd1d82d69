"""The model runner on a GPU: a step is launched in one go and read when it is done."""

from __future__ import annotations

import logging
from itertools import product

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.attention.plan import chunk_tokens, few_queries, split_queries
from octavo_kernels.cuda import reads_prefixes_once
from octavo_kernels.step import StepInputs, WindowInputs, carry, unpack_step
from octavo_worker.contract.cache import heads_per_kv, windows_of
from octavo_worker.contract.step import Done, Launched, Masks, SharedReading, StepError, StepPlan
from octavo_worker.model.batch import Batch, Paging
from octavo_worker.model.causal_model import CacheConfig, CausalModel
from octavo_worker.model.expansion import Expansion, ExpansionRoom
from octavo_worker.model.stage import Stage
from octavo_worker.model.transfer import on_device
from octavo_worker.runner.base import BaseRunner
from octavo_worker.runner.cuda.draft_model import CudaDraftModel
from octavo_worker.runner.cuda.draft_passes import DraftPlaces
from octavo_worker.runner.cuda.graphs import CaptureError, StepGraphs
from octavo_worker.runner.cuda.launched import LaunchedStep
from octavo_worker.runner.cuda.mailbox import Mailbox, Slot
from octavo_worker.runner.cuda.packer import PackedStep, Packer
from octavo_worker.runner.cuda.plans import AttentionPlans
from octavo_worker.runner.cuda.sampling import StepSampler
from octavo_worker.runner.cuda.shapes import DecodeShape, GraphShape, PromptShape, RaggedShape, Shape, StepShapes
from octavo_worker.runner.cuda.swap import SwapPool, SwapStreams
from octavo_worker.runner.draft_model import DraftModel
from octavo_worker.runner.parallel.leader import Leader

log = logging.getLogger(__name__)

ABREAST = 4
"""Prompts side by side where a recurrence computes one token of each after the other: on an H200 a layer of the delta
rule takes 2.6 ms for four of 4,096 tokens, and 3.8 for one of 8,192."""
SHARED_BYTES = 1 << 20
"""Bytes of one layer's shared prefix up to which the chip's cache hides the second read."""


class CudaRunner(BaseRunner):
    """Runs steps on one GPU.

    A plan is packed first: what is executed is a `PackedStep`, which needs nothing else of it. At most two steps may be
    in flight. A decode step is a message, one replay of a CUDA graph, and the answer's copy back; every other step, and
    with `graphs` False each, launches its kernels one by one. Only `Launched.result` waits for the device. Host blocks
    lie in pinned memory, which attention reads over the link. Decodes may verify up to `drafts` drafts
    each, as far as a step has no more than `most_samples` samples (None: as many as sequences).

    Of several ranks, each of which has a runner like this, the first has a `leader`; the others `follow`. All launch
    the same kernels in the same order, those of captures included: sums would wait for other sums otherwise.
    """

    asynchronous = True
    draft_model: DraftModel | None = None

    def __init__(
        self,
        model: CausalModel,
        cache: CacheConfig,
        max_model_len: int,
        token_budget: int,
        *,
        max_running: int,
        most_samples: int | None = None,
        drafts: int = 0,
        graphs: bool = True,
        leader: Leader | None = None,
    ) -> None:
        super().__init__(model, cache, max_model_len, token_budget)
        self.max_running, self._drafts, self._leader = max_running, drafts, leader
        self.abreast = ABREAST if any(spec is not None and spec.matrix for spec in model.states) else 1
        device, blocks = model.device, -(-max_model_len // cache.block_size)
        self.most_samples = samples = most_samples or max_running
        tokens = token_budget + samples  # the most in a step: of prompts, and of decodes
        words = Packer.capacity(max_running, samples, tokens, blocks, **self._kinds)
        self.shared_reading = _shared_reading(model, cache.block_size, self.kv_cache.dtype)
        self._mailbox = Mailbox(words, samples)
        self._message = torch.zeros(words, dtype=torch.int32, device=device)
        self._tables = torch.zeros((max_running, blocks), dtype=torch.int32, device=device)
        self._inputs = self._step_inputs(samples, tokens, blocks)
        self._is_first = model.group is None or model.group.rank.index == 0
        guessed = min(max_running, samples // 2)  # sequences: each has two samples at least
        self._sampler = StepSampler(self.rows, self._inputs, reads=self._is_first, guesses=drafts * guessed)
        guesses = self._sampler.tokens[samples:].view(drafts, guessed)
        self.draft_places = DraftPlaces(self._inputs, guesses, samples)
        self._swap = self._swap_streams()
        grouped, cached = self.shared_reading is not None, self.kv_cache.dtype
        self._plans = AttentionPlans(model, max_running, tokens, max_model_len, groups=grouped, cache_dtype=cached)
        self._room = ExpansionRoom.of(model.expanded, model.dtype, device, cache.block_size, max_model_len + tokens)
        self._stream = torch.cuda.Stream(device)
        self._before: Slot | None = None  # of the step launched last
        groups, windowed = heads_per_kv(model.cache), any(windows_of(model.cache))
        few = 0 if model.uniform else min((few_queries(group, windowed=windowed) for group in groups), default=0)
        self._shapes = StepShapes(
            max_running,
            tokens,
            samples=samples,
            prompts=bool(model.is_capturable),
            chunks=self._plans.chunks,
            heads_per_kv=groups,
            few_queries=few,
            block_size=cache.block_size,
            block_bytes=max((piece.nbytes for piece in self.layout.pieces if piece is not None), default=0),
        )
        self._packer = Packer(
            rows=max_running,
            block_size=cache.block_size,
            vocab_size=model.vocab_size,
            shapes=self._shapes,
            first_host_block=self.first_host_block if self.reads_host else None,
            guesses=self.draft_places.all,
            **self._kinds,
        )
        self._graphs = StepGraphs(self._run, self._try) if graphs and model.is_capturable is not False else None
        torch.cuda.synchronize(device)

    @property
    def _kinds(self) -> dict[str, bool]:
        """Kinds of words that messages have for this model, beside those of all."""
        return {"states": self.state_layout.slot_bytes > 0, "windows": self.windows is not None}

    def _step_inputs(self, sequences: int, tokens: int, blocks: int) -> StepInputs:
        device, inputs = self.model.device, None
        if self.windows is not None:
            inputs = WindowInputs.allocate(self.max_running, sequences, tokens, blocks, device)
        return StepInputs.allocate(sequences, tokens, blocks, device, states=self._kinds["states"], windows=inputs)

    def _swap_streams(self) -> SwapStreams:
        windows = SwapPool(self.kv_cache[:0], self.host_cache[:0], 0)  # without a second group nothing of it moves
        if self.window_pools is not None and self.windows is not None:
            windows = SwapPool(self.window_pools.device, self.window_pools.host, self.windows.first_host_block)
        return SwapStreams(
            SwapPool(self.kv_cache, self.host_cache, self.first_host_block),
            SwapPool(self.states, self.host_states, self.first_host_state_slot),
            windows,
        )

    def launch(self, plan: StepPlan) -> Launched:
        """Starts a step. It fails with a `StepError` for a sequence whose tokens the model cannot embed."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            try:
                slot = self._mailbox.take()
                drafted = plan if self.draft_model is None else self.draft_model.of_plan(plan)
                packed = self._packer.pack(drafted, slot.words)
                if self._leader is not None:
                    self._leader.packed(packed)
                step = self._execute(packed, slot)
                if drafted is not plan:
                    step.drafts = [s.drafts for s in drafted.sequences]
                return step
            except StepError as error:
                self._before = None  # its slot comes round before the next step is read
                return Done(error)

    def follow(self, packed: PackedStep) -> LaunchedStep:
        """As another rank than the first: starts what that one has packed. Its answer stays unread. Raises
        `RankLost`."""
        assert self.model.group is not None
        self.model.group.verify()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            slot = self._mailbox.take()
            slot.words[: len(packed.words)] = packed.words
            self._swap.wait_out()  # the first rank may have read that it is over, and given its blocks away
            return self._execute(packed, slot)

    def warm_up(self) -> None:
        """Captures all graphs now instead of when they are first needed. A model that cannot be captured, and need not
        be, does without."""
        try:
            self._capture_all()
        except CaptureError as error:
            if self.model.is_capturable:
                raise
            log.info("decode steps of this model launch their kernels one by one: %s", error)
            self._graphs = None

    @property
    def captures(self) -> bool:
        """True if steps are replayed as graphs."""
        return self._graphs is not None

    @torch.inference_mode()
    def use_draft(self, model: CudaDraftModel) -> None:
        """Let a model guess, in the `draft_places`."""
        self._stream.wait_stream(torch.cuda.current_stream(self.model.device))  # its buffers are filled on that one
        with torch.cuda.stream(self._stream):
            model.warm_up()
            self._stream.synchronize()
        self.draft_model = model

    @torch.inference_mode()
    def _capture_all(self) -> None:
        kinds = (False,) if self.shared_reading is None else (False, True)
        with torch.cuda.stream(self._stream):
            for size in reversed(self._shapes.decodes):  # smaller ones find their memory in the larger ones' pool
                for is_shared in kinds if size > 1 else (False,):
                    self._capture(DecodeShape(size, is_shared))
            for sequences, tokens in product(*self._shapes.prompts):
                if sequences <= tokens:
                    self._capture(PromptShape(sequences, tokens, self._plans.chunks))
            for shape in self._shapes.verifying(self._drafts):
                self._capture(shape)
            self._stream.synchronize()

    def _execute(self, packed: PackedStep, slot: Slot) -> LaunchedStep:
        """Starts a step whose message lies in `slot`."""
        swaps = self._move(packed)
        self._copy(packed)
        shape, sizes = packed.shape, packed.sizes
        if shape is None:
            self._before = None
            return LaunchedStep(packed, [*swaps, self._stream.record_event()])
        if sizes.reads_host:
            self._swap.wait_out()
        self._prepare(shape)
        words = len(packed.words)
        slot.began.record(self._stream)
        carry(slot.message[:words], self._message[:words])
        slot.sent.record(self._stream)
        step = LaunchedStep(packed, swaps, slot, self._before, group=self.model.group)
        self._before = slot
        if self.draft_model is not None and self.draft_model.guesses_now:
            self._unpack(sizes.sequences)
            self.draft_model.guess()
            step.guessed = sizes.decoded
        logits = self._run_ragged(shape, step) if isinstance(shape, RaggedShape) else self._replay(shape)
        self._sampler.choose_filtered(logits, packed)
        self._sampler.choose_special(logits, [row for row in packed.special if not row.row.masked], step)
        if len(packed.masked) or any(row.row.masked for row in packed.special):
            step.logits, step.finish = logits, self._choose_masked
        else:
            self._send_answer(step)
        return step

    def _send_answer(self, step: LaunchedStep) -> None:
        """All is chosen, or will be by what was launched."""
        assert step.slot is not None
        count = step.packed.sizes.samples
        if self._is_first:
            carry(self._sampler.tokens[:count], step.slot.tokens[:count])
        if step.guessed:
            carry(self._inputs.token_ids[: step.guessed], step.slot.inputs[: step.guessed])
        step.slot.done.record(self._stream)

    def _choose_masked(self, step: LaunchedStep, masks: Masks) -> None:
        """Samples with a mask, from logits that the next launch overwrites."""
        logits, step.logits = step.logits, None
        assert logits is not None
        if self._leader is not None:
            self._leader.masks(masks)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            if len(masks.places):
                self._sampler.choose_masked(logits, step, masks)
            self._send_answer(step)

    def _move(self, packed: PackedStep) -> list[torch.cuda.Event]:
        """Starts what comes from the host and what leaves for it. What the step before let come, this one may read."""
        self._swap.wait_in()
        swaps = []
        coming = packed.swap_in, packed.state_in, packed.windows.swap_in
        leaving = packed.swap_out, packed.state_out, packed.windows.swap_out
        if any(coming):
            swaps.append(self._swap.bring(*coming))
            if packed.uses_swapped_in:
                self._swap.wait_in()
        if any(leaving):
            swaps.append(self._swap.send(*leaving))
        return swaps

    def _copy(self, packed: PackedStep) -> None:
        """Starts the copies of blocks of each group."""
        if packed.copies:
            ops.copy_blocks(self.kv_cache, on_device(packed.copies, torch.int64, self.model.device))
        if packed.windows.copies:
            assert self.window_pools is not None
            ops.copy_blocks(self.window_pools.device, on_device(packed.windows.copies, torch.int64, self.model.device))

    def _prepare(self, shape: Shape) -> None:
        """Makes room for a shape, and its graph."""
        if not isinstance(shape, DecodeShape):
            self._plans.make_room(shape.chunks)
        if not isinstance(shape, RaggedShape):
            self._capture(shape)

    def _capture(self, shape: GraphShape) -> None:
        """Captures a graph unless it exists. An empty message makes every row padding, and what the step in flight
        sampled, which the next step may ask for, outlives the trial."""
        if self._graphs is not None and shape not in self._graphs:
            if isinstance(shape, PromptShape):
                self._graphs.forget_prompts(but=shape.chunks)
            self._message.zero_()
            sampled = self._sampler.tokens.clone()
            self._graphs.capture(shape)
            self._sampler.tokens.copy_(sampled)

    def _replay(self, shape: GraphShape) -> Tensor:
        """A padded step. Returns its logits."""
        return self._run(shape) if self._graphs is None else self._graphs.replay(shape)

    def _try(self, shape: GraphShape) -> None:
        with self.model.shortened():
            self._run(shape)

    def _run(self, shape: GraphShape) -> Tensor:
        """Everything from the message to the sampled tokens: this is what graphs capture."""
        return self._run_decodes(shape) if isinstance(shape, DecodeShape) else self._run_prompts(shape)

    def _run_prompts(self, shape: PromptShape) -> Tensor:
        i, tokens = self._inputs, shape.tokens
        i.token_ids[:tokens].zero_()  # the padding belongs to no sequence
        i.positions[:tokens].zero_()
        i.slots[:tokens].fill_(-1)
        if i.windows is not None:
            i.windows.slots[:tokens].fill_(-1)
        if shape.drafts:
            i.sample_rows[: shape.samples].zero_()
            i.samples[: shape.samples].zero_()
        self._unpack(shape.sequences)
        batch = self._batch(shape.sequences, tokens)
        batch.plans, batch.prompts = self._plans.for_step(batch, prompts=not shape.few), not shape.drafts
        logits = self.model.logits(self.model.forward(batch, i.sample_rows[: shape.samples]))
        self._sampler.choose(logits)
        return logits

    def _run_decodes(self, shape: DecodeShape) -> Tensor:
        size = shape.sequences
        self._unpack(size)
        batch = self._batch(size, size)
        batch.plans = self._plans.for_decodes(batch, shared=shape.is_shared)
        logits = self.model.logits(self.model.forward(batch, None))
        self._sampler.choose(logits)
        return logits

    def _run_ragged(self, shape: RaggedShape, step: LaunchedStep) -> Tensor:
        """A step of any sizes, kernel by kernel. Returns its logits."""
        packed, sizes = step.packed, step.packed.sizes
        self._unpack(sizes.sequences)
        batch = self._batch(sizes.sequences, sizes.tokens)
        if self._room is not None:
            parts = (batch.block_tables, batch.context_lens, batch.query_start)
            batch.expansion = Expansion.of(self._room, parts, sizes.queries, sizes.contexts, sizes.decodes)
        batch.plans = self._plans.for_step(batch, decodes=not shape.prompts_only)
        if shape.is_staged:
            batch.stage = Stage.of(batch.block_tables, sizes.contexts, self.block_size)
        count = sizes.samples
        rows = self._inputs.sample_rows[: max(count, 1)]  # one at least: kernels want rows
        scored = [row for part in packed.scores for row in part.rows]
        if scored:
            rows = torch.cat((rows[:count], on_device(scored, torch.int64, self.model.device)))
        features = self.model.forward(batch, rows)
        step.scores = self._score_prompts(features[count:], packed.scores)
        logits = self.model.logits(features[:count])
        self._sampler.choose(logits)
        return logits

    def _unpack(self, sequences: int) -> None:
        """From the message of a step to its inputs, with padding up to so many sequences."""
        unpack_step(self._message, self._tables, self._sampler.tokens, self._inputs, sequences, self.block_size)

    def _batch(self, sequences: int, tokens: int) -> Batch:
        i = self._inputs
        query_start, w = i.query_start[: sequences + 1], i.windows
        return Batch(
            token_ids=i.token_ids[:tokens],
            positions=i.positions[:tokens],
            slots=i.slots[:tokens],
            block_tables=i.block_tables[:sequences],
            context_lens=i.context_lens[:sequences],
            query_start=query_start,
            row_context=i.row_context[:tokens],
            groups=i.groups[:sequences],
            prefix_lens=i.prefix_lens[:sequences],
            moves=None if i.moves is None else i.moves.of(query_start),
            windows=None if w is None else Paging(w.block_tables[:sequences], w.slots[:tokens]),
        )


def _shared_reading(model: CausalModel, block_size: int, cache_dtype: torch.dtype) -> SharedReading | None:
    """None if every layer has a sliding window, behind which blocks are given up, where the kernels read no groups, and
    where every sequence is computed as if it were alone."""
    full = [spec for spec in model.cache if spec is not None and not spec.window]
    read = [spec for spec in full if reads_prefixes_once(model.dtype, cache_dtype, spec.key_dim)]
    if not read or model.uniform:
        return None
    queries = min(split_queries(group) for group in heads_per_kv(read))
    return SharedReading(chunk_tokens() // block_size, SHARED_BYTES // max(spec.token_bytes for spec in read), queries)
