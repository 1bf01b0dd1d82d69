"""A draft model as a GPU runs it, on a CPU: its passes follow each other on tensors alone, from the packed message of
the step that verifies them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from octavo_kernels.step import StepInputs, unpack_step
from octavo_worker.contract.step import Launched, SequenceStep, StepPlan
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.runner.cuda.draft_model import CudaDraftModel
from octavo_worker.runner.cuda.draft_passes import DraftPasses, DraftPlaces
from octavo_worker.runner.cuda.packer import Packer
from octavo_worker.runner.cuda.shapes import RaggedShape, StepSizes
from octavo_worker.runner.draft_model import DraftSizes
from octavo_worker.runner.paged import PagedRunner


class AsItIs:
    """Pads no step."""

    def of(self, step: StepSizes) -> RaggedShape:
        return RaggedShape(0, False, False)


class ChainedRunner:
    """Takes the place of a runner with a draft model: its passes are chained, all else is the runner's. It counts
    the windows that were left to the device, and those that were not."""

    def __init__(self, runner: PagedRunner, *, most: int, rows: int, context: int | None = None) -> None:
        assert runner.draft_model is not None
        self._runner, model, cpu = runner, runner.draft_model.model, torch.device("cpu")
        size, tokens = runner.block_size, runner.token_budget + rows * (1 + most)
        blocks, samples = -(-runner.max_model_len // size), rows * (1 + most)
        self._tables = torch.zeros((rows, blocks), dtype=torch.int32)
        self._inputs = StepInputs.allocate(samples, tokens, blocks, cpu)
        self._sampled = torch.zeros(samples + rows * most, dtype=torch.int64)
        self.places = DraftPlaces(self._inputs, self._sampled[samples:].view(most, rows), samples)
        self._words = np.zeros(Packer.capacity(rows, samples, tokens, blocks), np.int32)
        self._packer = Packer(
            rows=rows,
            block_size=size,
            vocab_size=runner.vocab_size,
            shapes=AsItIs(),
            first_host_block=runner.first_host_block,
            guesses=self.places.all,
        )
        cache = CacheConfig(runner.num_blocks, size, runner.num_host_blocks, getattr(torch, runner.kv_dtype))
        sizes = DraftSizes(
            context or runner.max_model_len, runner.token_budget, runner.vocab_size, runner.first_host_block
        )
        self.draft = CudaDraftModel(model, cache, sizes)
        passes = DraftPasses(
            model, self.places, self.draft.as_target, block_size=size, sequences=rows, plans=None, graphs=False
        )
        self.draft.use(passes, self.places)
        self.on_device = self.on_host = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: StepPlan) -> Launched:
        sequences = self.guessed(plan)
        own, self._runner.draft_model = self._runner.draft_model, None
        try:
            launched = self._runner.launch(replace(plan, sequences=sequences))
        finally:
            self._runner.draft_model = own
        for place, (planned, step) in enumerate(zip(plan.sequences, sequences, strict=True)):
            if planned.wanted:
                launched.results[place].drafts = step.drafts  # type: ignore[union-attr]
        return launched

    @torch.inference_mode()
    def guessed(self, plan: StepPlan) -> list[SequenceStep]:
        """The sequences of a plan, with all drafts known."""
        drafted = self.draft.of_plan(plan)
        steps = list(drafted.sequences)
        self.on_host += sum(step.wanted > 0 for step in plan.sequences)
        if not self.draft.guesses_now:
            return steps
        packed = self._packer.pack(drafted, self._words)
        self._unpack(packed.words, len(steps))
        self.draft.guess()
        tokens = self._unpack(packed.words, len(steps))
        for place, step in enumerate(steps):
            count = len(step.tokens)
            if step.drafts and step.drafts[-1] < 0:
                steps[place] = replace(step, tokens=tuple(tokens[:count]))
                self.on_device += 1
                self.on_host -= 1
            tokens = tokens[count:]
        return steps

    def _unpack(self, words: np.ndarray, sequences: int) -> list[int]:
        message = torch.from_numpy(words.copy())
        unpack_step(message, self._tables, self._sampled, self._inputs, sequences, self._runner.block_size)
        return list(self._inputs.token_ids.tolist())
