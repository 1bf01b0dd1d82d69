"""The attention plans of the model's layers: one for each shape that occurs, shared by its layers."""

from __future__ import annotations

import torch

from octavo_kernels.attention.plan import AttentionPlan, chunk_tokens
from octavo_kernels.attention.wide import Plan, WidePlan, takes_wide
from octavo_kernels.cuda import reads_prefixes_once
from octavo_worker.contract.cache import AttentionShape, shapes_of
from octavo_worker.model.batch import Batch
from octavo_worker.model.causal_model import CausalModel
from octavo_worker.model.decoder import Decoder

Plans = dict[AttentionShape, Plan]


class AttentionPlans:
    """Plans allocated once for the largest possible step, because graphs keep their addresses: for decodes, with and
    without prefix groups (which cost a launch a layer), and for steps with prompts. The latter grow if the ends of many
    prompts are split along many keys at once.

    No sequence has more than so many `queries` (None: as many as there are tokens). Without `groups` sequences are
    never grouped. The cache is of type `cache_dtype`; None: that of the model.
    """

    def __init__(
        self,
        model: CausalModel,
        sequences: int,
        tokens: int,
        max_model_len: int,
        *,
        groups: bool,
        queries: int | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self._model, self._groups, self._cache_dtype = model, groups, cache_dtype
        self._sequences, self._tokens = sequences, tokens
        self.chunks = sequences * -(-max_model_len // chunk_tokens())
        """Chunks of keys for which the plans for prompts have room. Another number changes all addresses."""
        self._decodes = {shared: self._make(self.chunks, sequences, 1, shared=shared) for shared in {False, groups}}
        self._queries = queries or tokens
        self._mixed = self._make(self.chunks, tokens, self._queries, shared=groups)

    @staticmethod
    def scratch_bytes(
        model: CausalModel, sequences: int, max_model_len: int, cache_dtype: torch.dtype | None = None
    ) -> int:
        """The most that all plans take, unless nearly every sequence of a step is the end of a prompt, split along many
        keys."""
        chunks = sequences * -(-max_model_len // chunk_tokens())
        shapes = shapes_of(model.cache)
        wide = [shape for shape in shapes if _is_wide(shape, model, cache_dtype)]
        return 3 * len(wide) * (WidePlan.partial_bytes(model.device) if wide else 0) + sum(
            AttentionPlan.partial_bytes(
                chunks=chunks,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.width,
                max_queries=queries,
                uniform=model.uniform,
            )
            for shape in shapes
            if shape not in wide
            for queries in (1, 1, chunk_tokens())  # a prompt's: more than a tile has rows
        )

    def for_decodes(self, batch: Batch, *, shared: bool) -> Plans:
        """Updated on the device for a batch of one token a sequence, `shared` if some are grouped by their prefix."""
        return _updated(self._decodes[shared], batch)

    def make_room(self, chunks: int) -> None:
        """For a step with prompts of so many chunks."""
        if chunks > self.chunks:
            self._mixed = {}  # its memory first
            self._mixed = self._make(chunks, self._tokens, self._queries, shared=self._groups)
            self.chunks = chunks

    def for_step(self, batch: Batch, *, decodes: bool = True, prompts: bool = True) -> Plans:
        """Updated on the device for any batch that fits. Without `decodes` no sequence of it is computed as decodes
        are, without `prompts` all are, and in no groups: that must hold for all batches that a graph is for."""
        return _updated(self._mixed, batch, decodes=decodes, prompts=prompts)

    def _make(self, chunks: int, tokens: int, max_queries: int, *, shared: bool) -> Plans:
        model = self._model
        plans: Plans = {}
        for shape in shapes_of(model.cache):
            if _is_wide(shape, model, self._cache_dtype):
                plans[shape] = WidePlan(
                    sequences=self._sequences,
                    heads=shape.heads,
                    kv_heads=shape.kv_heads,
                    latent=shape.latent > 0,
                    uniform=model.uniform,
                    device=model.device,
                )
                continue
            plans[shape] = AttentionPlan(
                sequences=self._sequences,
                tokens=tokens,
                chunks=chunks,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.width,
                max_queries=max_queries,
                sliding_window=shape.window,
                shared_prefixes=shared and reads_prefixes_once(model.dtype, model.dtype, shape.width),
                uniform=model.uniform,
                device=model.device,
            )
        return plans


def _is_wide(shape: AttentionShape, model: CausalModel, cache_dtype: torch.dtype | None) -> bool:
    """True if a `WidePlan` is what layers of this shape take: its kernels know no window, softcap or sinks."""
    if shape.window or not isinstance(model, Decoder) or model.config.softcap or model.config.sinks:
        return False
    return takes_wide(model.device, model.dtype, cache_dtype or model.dtype, shape.width, shape.latent)


def _updated(plans: Plans, batch: Batch, *, decodes: bool = True, prompts: bool = True) -> Plans:
    for shape, plan in plans.items():
        part = batch.absorbed if shape.latent else batch
        if len(part.context_lens):  # or all of the step is expanded
            plan.update(
                part.context_lens, part.query_start, part.groups, part.prefix_lens, decodes=decodes, prompts=prompts
            )
    return plans
