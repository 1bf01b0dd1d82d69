"""The generic decoder: every family of `model/families/`, over the kernels' operations only."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from octavo_kernels.ops import LayerStates
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.expansion import expanded_layer
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.latent import LatentAttention
from octavo_worker.model.layers.layer_inputs import InputTable
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.mixer import Mixer
from octavo_worker.model.layers.mixture import ExpertMlp, Mixture
from octavo_worker.model.layers.norm import AddNorm, Input
from octavo_worker.model.layers.recurrent.branches import BranchMixer
from octavo_worker.model.layers.recurrent.mixer import RecurrentMixer
from octavo_worker.model.layers.tables import Tables
from octavo_worker.model.numerics import DECODER
from octavo_worker.model.recurrent.slots import no_moves
from octavo_worker.ranks.group import Group


@dataclass(frozen=True, slots=True)
class DecoderLayers:
    """`start` stands in front of the first block. The head may have the embedding's table. `inputs` are those of every
    layer beside the hidden states."""

    embed: Tensor  # [vocab, hidden]
    positions: Tensor | None
    start: AddNorm
    blocks: list[Block]
    head: Linear
    inputs: InputTable | None = None

    @property
    def linears(self) -> list[Linear]:
        """Linears of all blocks, those before them, and the head."""
        first = [] if self.inputs is None else [self.inputs.product]
        return [*first, *(linear for block in self.blocks for linear in block.products().values()), self.head]


class Taps(Protocol):
    """Reads hidden states while a decoder computes. `layers` are those whose input it takes."""

    @property
    def layers(self) -> Sequence[int]: ...

    def take(self, layer: int, hidden: Tensor) -> None:
        """`hidden[T, hidden]` enters this layer. It is overwritten afterwards."""
        ...

    def keep(self, slots: Tensor) -> None:
        """All layers were taken from, of the tokens in `slots[T]`; -1 is padding."""
        ...


class Decoder:
    """Runs ragged batches against a paged KV cache.

    `bind` attaches the cache and fixes the longest position; then `forward` turns a batch into the final hidden states
    of the rows asked for, and `logits` those into logits. A `uniform` decoder takes products and attention on a GPU
    whose rows do not depend on what else is in the batch. With a `group` it is one rank's part: `config` and `layers`
    have its heads, and `logits` are those of its tokens. `taps` read every step, also where it is replayed as a graph.
    """

    is_capturable = True
    reads_windows = True
    route = DECODER
    kept_bytes = 0
    taps: Taps | None = None

    def __init__(
        self,
        config: DecoderConfig,
        layers: DecoderLayers,
        token_budget: int,
        *,
        uniform: bool,
        group: Group | None = None,
    ) -> None:
        self.group = group
        self.config = config
        self.layers = layers
        self._blocks = layers.blocks
        self.uniform = uniform
        self.factors = ""
        self.has_whole_experts = any(mixture.owned is not None for mixture in self.mixtures)
        self.forms = frozenset[str]().union(*(linear.forms for linear in layers.linears))
        self.reads_context = any(linear.reads_context for linear in layers.linears)
        self.dtype = layers.embed.dtype
        self.device = layers.embed.device
        self.vocab_size = config.vocab_size
        self.cache = tuple(block.attention.kept(self.dtype) for block in layers.blocks)
        recurrent = [mixer if isinstance(mixer, RecurrentMixer | BranchMixer) else None for mixer in self._mixers]
        self.states = tuple(None if mixer is None else mixer.state for mixer in recurrent)
        self.has_chunks = any(mixer is not None and mixer.chunked for mixer in recurrent)
        latent = [mixer.layer for mixer in self._mixers if isinstance(mixer, LatentAttention)]
        self.expanded = expanded_layer(latent, self.dtype, self.device, uniform=uniform)
        # Gemma was trained with the multiplier rounded to the weights' dtype.
        self.embedding_multiplier = torch.tensor(config.embedding_multiplier, dtype=self.dtype).item()
        self.buffers = Buffers.allocate(config, token_budget, self.dtype, self.device)

    @property
    def _mixers(self) -> list[Mixer]:
        return [block.attention for block in self.layers.blocks]

    @property
    def mixtures(self) -> list[Mixture]:
        """Mixtures of the layers that have one."""
        return [block.mlp.mixture for block in self.layers.blocks if isinstance(block.mlp, ExpertMlp)]

    def bind(self, caches: Sequence[Tensor | None], block_size: int, max_model_len: int) -> None:
        tables = Tables.of(self.config, max_model_len, self.dtype, self.device)
        for block, cache in zip(self.layers.blocks, caches, strict=True):
            block.attention.bind(cache, block_size, tables)

    def bind_states(self, states: Sequence[LayerStates | None]) -> None:
        """Attaches each layer's part of the slots of states."""
        for mixer, part in zip(self._mixers, states, strict=True):
            if isinstance(mixer, RecurrentMixer | BranchMixer):
                assert part is not None
                mixer.bind_states(part)

    @contextmanager
    def shortened(self) -> Iterator[None]:
        """Meanwhile `forward` takes one block of each kind, then the last one, which computes fewer rows: all kernels
        of a step run, and what comes out means nothing."""
        first_of = dict[Hashable, Block]()
        for block in self.layers.blocks:
            first_of.setdefault(block.kind, block)
        self._blocks = [*first_of.values(), self.layers.blocks[-1]]
        try:
            yield
        finally:
            self._blocks = self.layers.blocks

    def forward(self, batch: Batch, rows: Tensor | None) -> Tensor:
        """Hidden states `[R, hidden]`, after the final norm, of `rows[R]` (int64); None means of all tokens. There may
        be more rows than tokens: parallel samples share one."""
        tokens = len(batch.token_ids)
        needed = max(tokens, 0 if rows is None else len(rows))
        if needed > len(self.buffers.hidden):
            self.buffers = Buffers.allocate(self.config, needed, self.dtype, self.device)
        b = self.buffers.first(tokens)
        b.row_context = batch.row_context if self.reads_context else None
        b.slots = batch.slots
        if batch.moves is None and any(self.states):
            batch = replace(batch, moves=no_moves(batch.query_start))
        x = self._embed(batch, b)
        *blocks, last = self._blocks
        for number, block in enumerate(blocks):
            self._tap(number, b)
            x = block.forward(x, b, batch)
        self._tap(len(blocks), b)
        if self.taps is not None:
            self.taps.keep(batch.slots)
        if rows is None:
            return last.forward(x, b, batch).materialise()
        return last.forward_some(x, b, batch, rows, self.buffers.first(len(rows))).materialise()

    def logits(self, hidden: Tensor) -> Tensor:
        """`[R, vocab]`, in the weights' dtype unless something is done to them: kernels read that, and a float32 copy
        of a large batch takes longer than sampling from it."""
        logits = self.layers.head.apply(Input(hidden))
        if self.config.logits_divisor != 1.0:
            logits = logits.float().div_(self.config.logits_divisor)
        if self.config.logits_multiplier != 1.0:
            logits = logits.float().mul_(self.config.logits_multiplier)
        if self.config.logits_softcap:
            logits = logits.float().div_(self.config.logits_softcap).tanh_().mul_(self.config.logits_softcap)
        return logits

    def _tap(self, layer: int, b: Buffers) -> None:
        if self.taps is not None and layer in self.taps.layers:
            self.taps.take(layer, b.hidden)

    def _embed(self, batch: Batch, b: Buffers) -> Input:
        torch.index_select(self.layers.embed, 0, batch.token_ids, out=b.hidden)
        if self.embedding_multiplier != 1.0:
            b.hidden.mul_(self.embedding_multiplier)
        if self.layers.positions is not None and self.config.position_offset is not None:
            b.hidden.add_(self.layers.positions[batch.positions + self.config.position_offset])
        if self.layers.inputs is not None:
            b.inputs = self.layers.inputs.of(batch.token_ids, b.hidden)
        return self.layers.start.after_sum(b)
