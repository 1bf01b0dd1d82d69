"""Batches of a draft model on a GPU that launch their kernels one by one: what it missed, and passes that wait."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.attention.plan import chunk_count
from octavo_worker.contract.cache import heads_per_kv
from octavo_worker.model.batch import Batch
from octavo_worker.model.causal_model import CausalModel
from octavo_worker.model.transfer import on_device
from octavo_worker.runner.cuda.plans import AttentionPlans


class DraftBatches:
    """Carries batches of at most `sequences` and `tokens` to the device, with the plans that the draft's layers share.
    Where they choose tokens, a step waits for each: the host says what they are drawn from."""

    def __init__(
        self, model: CausalModel, sequences: int, tokens: int, context: int, cache_dtype: torch.dtype | None
    ) -> None:
        self._device = model.device
        self._plans = AttentionPlans(model, sequences, tokens, context, groups=False, cache_dtype=cache_dtype)
        self._heads_per_kv = heads_per_kv(model.cache)

    def place(self, batch: Batch) -> Batch:
        contexts, starts = batch.context_lens.numpy(), batch.query_start.numpy()
        self._plans.make_room(max(chunk_count(contexts, np.diff(starts), group) for group in self._heads_per_kv))
        moved = Batch(
            token_ids=self._move(batch.token_ids),
            positions=self._move(batch.positions),
            slots=self._move(batch.slots),
            block_tables=self._move(batch.block_tables),
            context_lens=self._move(batch.context_lens),
            query_start=self._move(batch.query_start),
        )
        moved.plans = self._plans.for_step(moved)
        return moved

    def _move(self, tensor: Tensor) -> Tensor:
        return on_device(tensor, tensor.dtype, self._device)
