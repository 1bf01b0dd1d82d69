"""The model runner on a GPU: a step is launched in one go and read when it is done."""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.cuda import reads_prefixes_once
from octavo_kernels.plan import chunk_tokens, split_queries
from octavo_kernels.pools import empty_pools
from octavo_kernels.step import StepInputs, carry, unpack_step
from octavo_worker.contract.step import (
    Done,
    Launched,
    Sampled,
    SampleSpec,
    SequenceResult,
    SequenceStep,
    SharedReading,
    Speeds,
    StepError,
    StepPlan,
    StepResult,
)
from octavo_worker.model.batch import Batch
from octavo_worker.model.cuda.graphs import (
    CaptureError,
    DecodeShape,
    PromptShape,
    Shape,
    StepGraphs,
    batch_sizes,
    prompt_sizes,
)
from octavo_worker.model.cuda.mailbox import Mailbox, Slot
from octavo_worker.model.cuda.packer import Packed, Packer
from octavo_worker.model.cuda.plans import AttentionPlans
from octavo_worker.model.cuda.swap import SwapStreams
from octavo_worker.model.numerics import numerics
from octavo_worker.model.runner import PROMPT_ROWS, CausalModel
from octavo_worker.model.sampler import Choice, Scores, on_device, sample, score
from octavo_worker.model.stage import Stage

log = logging.getLogger(__name__)

SHARED_BYTES = 1 << 20
"""Of one layer: what the second read of a shared prefix costs up to here, the cache of the chip hides."""


FEW_QUERIES = 64
"""Up to here one or two tiles hold all queries of a sequence: they may as well read the host's blocks over the link."""


@dataclass(slots=True)
class StepUnderWay:
    """What is to be read once a step is done: how many samples each sequence has, the places of those that are
    `special`, which are in `choice`. `before`: the slot of the step that the device computed before."""

    slot: Slot | None
    samples: list[int]
    before: Slot | None = None
    special: list[int] = field(default_factory=list)
    choice: Choice | None = None
    prompts: list[list[Scores]] = field(default_factory=list)
    swaps: list[torch.cuda.Event] = field(default_factory=list)

    def result(self) -> StepResult:
        """Waits for the device."""
        for event in self.swaps:
            event.synchronize()
        if self.slot is None:
            return StepResult([])
        self.slot.done.synchronize()
        tokens = self.slot.tokens[: sum(self.samples)].tolist()
        answers = list(map(Sampled, tokens))
        if self.choice is not None:
            for place, answer in zip(self.special, self.choice.result(), strict=True):
                answers[place] = answer
        gap_ms = self.before.done.elapsed_time(self.slot.began) if self.before else 0.0
        return StepResult(self._by_sequence(answers), gap_s=gap_ms / 1e3)

    def _by_sequence(self, answers: list[Sampled]) -> list[SequenceResult]:
        if len(answers) == len(self.samples) and not self.prompts and 0 not in self.samples:
            return [SequenceResult([answer]) for answer in answers]
        found = iter(answers)
        results = [SequenceResult([next(found) for _ in range(count)]) for count in self.samples]
        for result, parts in zip(results, self.prompts, strict=False):
            result.prompt_logprobs = [logprob for part in parts for logprob in part.result()]
        return results


class CudaRunner:
    """Runs plans on one GPU against one paged KV cache.

    At most two steps may be in flight. A decode step is a message, one replay of a CUDA graph, and the answer's copy
    back; every other step, and with `graphs` False each, launches its kernels one by one. Nothing waits for the device
    but `Launched.result`.

    `num_host_blocks` (0: none) more blocks lie in pinned memory, where preempted sequences wait and, if the runner
    `reads_host`, long ones keep what does not fit: attention reads it there, over the link. `cache_dtype`: int8 or
    float8_e4m3fn instead of the model's.
    """

    asynchronous = True
    speeds: Speeds | None = None

    def __init__(
        self,
        model: CausalModel,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        *,
        max_running: int,
        token_budget: int,
        num_host_blocks: int = 0,
        cache_dtype: torch.dtype | None = None,
        graphs: bool = True,
    ) -> None:
        self.model = model
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = model.vocab_size
        self.window = model.window
        self.max_running, self.token_budget = max_running, token_budget
        shape = (model.num_layers, model.num_kv_heads, block_size, model.head_dim)
        pools = empty_pools(num_blocks, num_host_blocks, *shape, cache_dtype or model.dtype, model.device)
        self.kv_cache, self.host_cache = pools.device, pools.host
        self.reads_host = pools.first_host_block is not None
        self.kv_dtype = str(self.kv_cache.dtype).removeprefix("torch.")
        self.numerics = numerics(model.device, model.dtype, self.kv_cache.dtype, uniform=model.uniform)
        model.bind(pools.blocks, block_size, max_model_len)
        device, blocks = model.device, -(-max_model_len // block_size)
        self._tokens = tokens = token_budget + max_running  # the most in a step: of prompts, and one of each decode
        words = Packer.capacity(max_running, tokens, blocks)
        self.shared_reading = _shared_reading(model, block_size, self.kv_cache.dtype)
        self._packer = Packer(
            rows=max_running,
            block_size=block_size,
            vocab_size=model.vocab_size,
            first_host_block=pools.first_host_block,
        )
        self._mailbox = Mailbox(words, max_running)
        self._message = torch.zeros(words, dtype=torch.int32, device=device)
        self._tables = torch.zeros((max_running, blocks), dtype=torch.int32, device=device)
        self._sampled = torch.zeros(max_running, dtype=torch.int64, device=device)
        self._inputs = StepInputs.allocate(max_running, tokens, blocks, device)
        self._swap = SwapStreams(self.kv_cache, self.host_cache)
        self._plans = AttentionPlans(model, max_running, tokens, max_model_len, groups=self.shared_reading is not None)
        self._stream = torch.cuda.Stream(device)
        self._before: Slot | None = None  # of the step launched last
        self._sizes = batch_sizes(max_running)
        self._prompt_sizes = prompt_sizes(max_running, tokens if model.is_capturable else 0)
        self._graphs = StepGraphs(self._run) if graphs and model.is_capturable is not False else None
        torch.cuda.synchronize(device)

    def launch(self, plan: StepPlan) -> Launched:
        """Starts a step. It fails with a `StepError` for a sequence whose tokens the model cannot embed."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            try:
                return self._launch(plan)
            except StepError as error:
                return Done(error)

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

    @torch.inference_mode()
    def _capture_all(self) -> None:
        kinds = (False,) if self.shared_reading is None else (False, True)
        with torch.cuda.stream(self._stream):
            for size in reversed(self._sizes):  # smaller ones find their memory in the larger ones' pool
                for is_shared in kinds if size > 1 else (False,):
                    self._capture(DecodeShape(size, is_shared))
            for sequences, tokens in product(*self._prompt_sizes):
                if sequences <= tokens:
                    self._capture(PromptShape(sequences, tokens, self._plans.chunks))
            self._stream.synchronize()

    def _launch(self, plan: StepPlan) -> StepUnderWay:
        swaps = self._move(plan)
        if plan.copies:
            ops.copy_blocks(self.kv_cache, on_device(plan.copies, torch.int64, self.model.device))
        if not plan.sequences:
            self._before = None
            return StepUnderWay(None, [], swaps=[*swaps, self._stream.record_event()])
        slot = self._mailbox.take()
        packed = self._packer.pack(plan, slot.words)
        if packed.tokens > self._tokens:
            raise ValueError(f"a step of {packed.tokens} tokens, but the runner was made for {self._tokens}")
        if packed.is_cold:
            self._swap.wait_out()
        count = sum(packed.samples)
        is_staged = self._is_staged(plan, packed)
        shape = self._shape(plan, packed, may_pad=not is_staged)
        if shape is not None:
            self._capture(shape)
        slot.began.record()
        carry(slot.message[: packed.words], self._message[: packed.words])
        slot.sent.record()
        step = StepUnderWay(slot, packed.samples, self._before, packed.special, swaps=swaps)
        self._before = slot
        logits = self._replay(shape) if shape else self._run_eagerly(plan, packed, step, is_staged=is_staged)
        if packed.special:
            step.choice = self._choose_again(plan.sequences, packed.special, logits)
        carry(self._sampled[:count], slot.tokens[:count])
        slot.done.record()
        return step

    def _move(self, plan: StepPlan) -> list[torch.cuda.Event]:
        """Starts what comes from the host and what leaves for it. What the step before let come, this one may read."""
        self._swap.wait_in()
        swaps = []
        if plan.swap_in:
            swaps.append(self._swap.bring(plan.swap_in))
            if plan.uses_swapped_in:
                self._swap.wait_in()
        if plan.swap_out:
            swaps.append(self._swap.send(plan.swap_out))
        return swaps

    def _shape(self, plan: StepPlan, packed: Packed, *, may_pad: bool) -> Shape | None:
        """What the step is padded to; None for one that launches its kernels one by one, as many as it needs."""
        sequences, count = len(plan.sequences), sum(packed.samples)
        if plan.num_decodes == sequences == count:
            return DecodeShape(self._sizes[bisect_left(self._sizes, count)], packed.is_shared)
        sizes, tokens = self._prompt_sizes
        padded = sizes[bisect_left(sizes, max(sequences, count))]
        padding = padded - sequences  # a token and a chunk each
        fit = bisect_left(tokens, packed.tokens + padding)
        scores = any(step.prompt_logprobs is not None for step in plan.sequences)
        is_padded = may_pad and fit < len(tokens) and not scores
        self._plans.make_room(packed, padding if is_padded else 0)
        return PromptShape(padded, tokens[fit], self._plans.chunks) if is_padded else None

    def _capture(self, shape: Shape) -> None:
        """Captures a graph unless it exists. An empty message makes every row padding, and what the step in flight
        sampled, which the next step may ask for, outlives the trial."""
        if self._graphs is not None and shape not in self._graphs:
            if isinstance(shape, PromptShape):
                self._graphs.forget_prompts(but=shape.chunks)
            self._message.zero_()
            sampled = self._sampled.clone()
            self._graphs.capture(shape)
            self._sampled.copy_(sampled)

    def _replay(self, shape: Shape) -> Tensor:
        """A padded step. Returns its logits."""
        return self._run(shape) if self._graphs is None else self._graphs.replay(shape)

    def _run(self, shape: Shape) -> Tensor:
        """Everything from the message to the sampled tokens: this is what graphs capture."""
        return self._run_decodes(shape) if isinstance(shape, DecodeShape) else self._run_prompts(shape)

    def _run_prompts(self, shape: PromptShape) -> Tensor:
        i, tokens = self._inputs, shape.tokens
        i.token_ids[:tokens].zero_()  # the padding belongs to no sequence
        i.positions[:tokens].zero_()
        i.slots[:tokens].fill_(-1)
        unpack_step(self._message, self._tables, self._sampled, i, shape.sequences, self.block_size)
        batch = self._batch(shape.sequences, tokens)
        batch.plans = self._plans.for_step(batch)
        logits = self.model.logits(self.model.forward(batch, i.sample_rows[: shape.sequences]))
        self._sample(logits)
        return logits

    def _run_decodes(self, shape: DecodeShape) -> Tensor:
        size = shape.sequences
        unpack_step(self._message, self._tables, self._sampled, self._inputs, size, self.block_size)
        batch = self._batch(size, size)
        batch.plans = self._plans.for_decodes(batch, shared=shape.is_shared)
        logits = self.model.logits(self.model.forward(batch, None))
        self._sample(logits)
        return logits

    def _run_eagerly(self, plan: StepPlan, packed: Packed, step: StepUnderWay, *, is_staged: bool) -> Tensor:
        sequences = len(plan.sequences)
        unpack_step(self._message, self._tables, self._sampled, self._inputs, sequences, self.block_size)
        batch = self._batch(sequences, packed.tokens)
        batch.plans = self._plans.for_step(batch, packed)
        if is_staged:
            batch.stage = Stage.of(batch.block_tables, packed.contexts, self.block_size)
        count = sum(packed.samples)
        rows = self._inputs.sample_rows[: max(count, 1)]  # one at least: kernels want rows
        prompt_rows = _prompt_rows(plan.sequences)
        if prompt_rows:
            rows = torch.cat((rows[:count], on_device(prompt_rows, torch.int64, self.model.device)))
        features = self.model.forward(batch, rows)
        if prompt_rows:
            step.prompts = self._prompt_scores(features[count:], plan.sequences)
        logits = self.model.logits(features[:count])
        self._sample(logits)
        return logits

    def _is_staged(self, plan: StepPlan, packed: Packed) -> bool:
        """Whether many queries of a sequence read what lies on the host, and it fits."""
        prompts = plan.sequences[plan.num_decodes :]
        many = packed.is_cold and any(step.cold and len(step.tokens) > FEW_QUERIES for step in prompts)
        return many and Stage.fits(packed.contexts, self.block_size, self.kv_cache[:, 0])

    def _batch(self, sequences: int, tokens: int) -> Batch:
        i = self._inputs
        return Batch(
            token_ids=i.token_ids[:tokens],
            positions=i.positions[:tokens],
            slots=i.slots[:tokens],
            block_tables=i.block_tables[:sequences],
            context_lens=i.context_lens[:sequences],
            query_start=i.query_start[: sequences + 1],
            groups=i.groups[:sequences],
            prefix_lens=i.prefix_lens[:sequences],
        )

    def _sample(self, logits: Tensor) -> None:
        i, count = self._inputs, len(logits)
        if count:
            ops.sample(
                logits,
                seeds=i.seeds[:count],
                indices=i.indices[:count],
                positions=i.sample_positions[:count],
                temperature=i.temperature[:count],
                top_k=i.top_k[:count],
                top_p=i.top_p[:count],
                min_p=i.min_p[:count],
                out=self._sampled[:count],
            )

    def _choose_again(self, sequences: list[SequenceStep], special: list[int], logits: Tensor) -> Choice:
        """Samples that ask for more than temperature and filters, from copies of their logits."""
        specs: list[tuple[SampleSpec, int, bool]] = [
            (spec, at, s.follows is not None) for at, s in enumerate(sequences) for spec in s.samples
        ]
        places = on_device(special, torch.int64, logits.device)
        asking = [specs[place] for place in special]
        # decodes come first: what they follow stands in their sequence's place of the input
        followed = on_device([at if ahead else -1 for _, at, ahead in asking], torch.int64, logits.device)
        latest = torch.where(followed >= 0, self._inputs.token_ids[followed], -1)
        choice = sample(logits[places], [spec for spec, _, _ in asking], latest)
        self._sampled[places] = choice.tokens
        return choice.to_host()

    def _prompt_scores(self, features: Tensor, sequences: list[SequenceStep]) -> list[list[Scores]]:
        answers: list[list[Scores]] = []
        at = 0
        for sequence in sequences:
            answer: list[Scores] = []
            if sequence.prompt_logprobs is not None:
                for first in range(0, len(sequence.targets), PROMPT_ROWS):
                    targets = on_device(sequence.targets[first : first + PROMPT_ROWS], torch.int64, self.model.device)
                    logits = self.model.logits(features[at : at + len(targets)])
                    at += len(targets)
                    answer.append(score(logits, targets, [sequence.prompt_logprobs] * len(targets)).to_host())
            answers.append(answer)
        return answers


def _shared_reading(model: CausalModel, block_size: int, cache_dtype: torch.dtype) -> SharedReading | None:
    """None if every layer has a sliding window, behind which blocks are given up, where the kernels read no groups, and
    where every sequence is computed as if it were alone."""
    if 0 not in model.windows or model.uniform or not reads_prefixes_once(model.dtype, cache_dtype, model.head_dim):
        return None
    token_bytes = 2 * model.num_kv_heads * model.head_dim * model.dtype.itemsize
    queries = split_queries(max(1, model.num_heads // model.num_kv_heads))
    return SharedReading(chunk_tokens() // block_size, SHARED_BYTES // token_bytes, queries)


def _prompt_rows(sequences: list[SequenceStep]) -> list[int]:
    """Rows of the batch whose logits score the next token of a prompt."""
    rows: list[int] = []
    at = 0
    for sequence in sequences:
        if sequence.prompt_logprobs is not None:
            rows += range(at, at + len(sequence.targets))
        at += len(sequence.tokens)
    return rows
