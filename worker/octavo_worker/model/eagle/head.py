"""The layer that an EAGLE-3 head consists of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels.ops import LayerStates
from octavo_worker.contract.cache import CacheSpec
from octavo_worker.contract.state import StateSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import DecoderConfig, LatentLayer
from octavo_worker.model.eagle.features import Features
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import Input, RmsNorm
from octavo_worker.model.layers.tables import Tables
from octavo_worker.model.numerics import DECODER
from octavo_worker.ranks.group import Group


@dataclass(frozen=True, slots=True)
class HeadLayers:
    """`block` takes the normed embedding and the normed features side by side, `[T, 2 * hidden]`, and adds to the
    features. `ids[draft vocab]` (int64) are the target's ids of the tokens that the `head` knows; None: it knows all.
    """

    embed: Tensor  # [vocab, hidden]
    embed_norm: RmsNorm
    feature_norm: RmsNorm
    block: Block
    norm: RmsNorm
    head: Linear
    ids: Tensor | None


class EagleHead:
    """A `CausalModel` whose rows are in the place of the features that they read: the row in the slot of token i takes
    that slot's features and the embedding of token i + 1, and guesses token i + 2."""

    is_capturable = False
    reads_windows = False
    group: Group | None = None
    route = DECODER
    forms: frozenset[str] = frozenset()
    uniform = False
    factors = ""
    has_whole_experts = False
    has_chunks = False
    expanded: LatentLayer | None = None
    states: tuple[StateSpec | None, ...] = ()

    def __init__(self, config: DecoderConfig, layers: HeadLayers, features: Features, tokens: int) -> None:
        """`config` is that of its one layer. Passes have up to `tokens` tokens."""
        self.config = config
        self.layers = layers
        self.features = features
        self.kept_bytes = features.token_bytes
        self.dtype, self.device = layers.embed.dtype, layers.embed.device
        self.vocab_size = config.vocab_size
        self.cache: tuple[CacheSpec | None, ...] = (layers.block.attention.kept(self.dtype),)
        self._allocate(tokens)

    def _allocate(self, tokens: int) -> None:
        self._buffers = Buffers.allocate(self.config, tokens, self.dtype, self.device)
        self._pairs = torch.empty((tokens, 2 * self.config.hidden_size), dtype=self.dtype, device=self.device)

    def bind(self, caches: Sequence[Tensor | None], block_size: int, max_model_len: int) -> None:
        tables = Tables.of(self.config, max_model_len, self.dtype, self.device)
        self.layers.block.attention.bind(caches[0], block_size, tables)

    def bind_states(self, states: Sequence[LayerStates | None]) -> None:
        """It keeps none."""

    def shortened(self) -> AbstractContextManager[None]:
        return nullcontext()

    def forward(self, batch: Batch, rows: Tensor | None) -> Tensor:
        """Its states `[R, hidden]` of `rows[R]` (int64), before the last norm: what stands for features where the
        target has computed none."""
        tokens, layers, size = len(batch.token_ids), self.layers, self.config.hidden_size
        if (needed := max(tokens, 0 if rows is None else len(rows))) > len(self._pairs):
            self._allocate(needed)
        b, pairs = self._buffers.first(tokens), self._pairs[:tokens]
        torch.index_select(layers.embed, 0, batch.token_ids, out=b.normed)
        layers.embed_norm.apply(b.normed, pairs[:, :size])
        layers.feature_norm.apply(self.features.read(batch.slots, out=b.hidden), pairs[:, size:])
        if rows is None:
            return layers.block.forward(Input(pairs), b, batch).materialise()
        return layers.block.forward_some(Input(pairs), b, batch, rows, self._buffers.first(len(rows))).materialise()

    def logits(self, hidden: Tensor) -> Tensor:
        """`[R, vocab]` of the target's ids: minus infinity where the head knows no token."""
        layers = self.layers
        known = layers.head.apply(layers.norm.defer(hidden, torch.empty_like(hidden)))
        if layers.ids is None:
            return known
        return known.new_full((len(known), self.vocab_size), -torch.inf).index_copy_(1, layers.ids, known)
