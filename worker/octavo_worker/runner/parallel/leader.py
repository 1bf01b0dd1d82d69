"""Rank 0's side of a model on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
import torch

from octavo_kernels.exchange.gpus import Exchange
from octavo_worker.contract.step import Masks, StepPlan
from octavo_worker.contract.windows import Slabs
from octavo_worker.model.causal_model import CacheConfig, CausalModel
from octavo_worker.model.config import DecoderConfig
from octavo_worker.ranks.board import Board
from octavo_worker.ranks.cpu_group import CpuGroup
from octavo_worker.ranks.cuda_group import CudaGroup
from octavo_worker.ranks.group import Group
from octavo_worker.ranks.memory import RankMemory
from octavo_worker.ranks.processes import GO, Ranks
from octavo_worker.ranks.rank import Rank, vocabulary_of
from octavo_worker.runner.cuda.packer import PackedStep
from octavo_worker.runner.parallel.packed_steps import encode_packed
from octavo_worker.runner.parallel.steps import encode_masks, encode_plan

GATHERED_ROWS = 8
"""Rows of logits in one exchange: more go in several."""
GPU_GATHERED_ROWS = 256
"""The same for GPUs, which have the memory, and where each exchange is a launch."""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank, and the descriptor of the memory that it shares with the others."""

    rank: Rank
    memory: int

    def join(self, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> Group:
        """The group of a decoder's ranks, with room for the hidden states of `rows` tokens. Raises `RanksFailed`, or
        `ExchangeError` on a GPU."""
        hidden = rows * config.hidden_size * dtype.itemsize
        logits = len(vocabulary_of(config.vocab_size, Rank(0, self.rank.count))) * 4
        if device.type == "cpu":
            return CpuGroup(RankMemory(self.memory, self.rank, max(hidden, GATHERED_ROWS * logits)), self.rank)
        part_bytes = max(hidden, GPU_GATHERED_ROWS * logits)
        exchange = Exchange(self.rank.index, self.rank.count, device, part_bytes)
        return CudaGroup(RankMemory(self.memory, self.rank, 0), self.rank, exchange, part_bytes)


class Loaded(msgspec.Struct, frozen=True):
    """A rank's message once it has its part of the model: the bytes that its device has left for a KV cache, None if
    the options name its size, and what the others need to reach it."""

    room: int | None
    handle: bytes


class Sizes(msgspec.Struct, frozen=True):
    """Rank 0's decision on all ranks' memory, whose ids of blocks and slots are the same on each, and the handles of
    all ranks."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int
    handles: Sequence[bytes]
    num_state_slots: int = 0
    num_host_state_slots: int = 0
    num_window_blocks: int = 0
    num_host_window_blocks: int = 0
    slabs: Slabs | None = None


class Leader:
    """Tells the other ranks what to compute, before rank 0 computes it."""

    def __init__(self, ranks: Ranks, group: Group) -> None:
        self.ranks, self.group = ranks, group
        self._board = Board(group.memory, group.rank)
        self._handles: list[bytes] = []

    @classmethod
    def of(cls, ranks: Ranks, model: CausalModel) -> Self:
        """The leader of the ranks that `model` is the first part of."""
        assert model.group is not None
        return cls(ranks, model.group)

    def least_room(self, mine: int | None) -> int | None:
        """The least that a rank has left for its part of the KV cache, once all have loaded; None if the options name
        its size. Raises `RanksFailed`, with the reason, if one does not load."""
        others = [msgspec.json.decode(each.await_message(), type=Loaded) for each in self.ranks.processes]
        self._handles = [self.group.handle, *(each.handle for each in others)]
        return None if mine is None else min(mine, *(each.room or 0 for each in others))

    def begin(self, cache: CacheConfig, max_model_len: int) -> None:
        """Tell all ranks the size of the cache, and connect this one to them."""
        states = cache.num_state_slots, cache.num_host_state_slots
        windows = cache.num_window_blocks, cache.num_host_window_blocks
        sizes = Sizes(
            cache.num_blocks, cache.num_host_blocks, max_model_len, self._handles, *states, *windows, slabs=cache.slabs
        )
        self.ranks.send(msgspec.json.encode(sizes))
        self.group.connect(self._handles)

    def join(self) -> None:
        """Returns once all ranks are ready and reach each other. From then on none is lost unnoticed. Raises
        `RanksFailed` or `ExchangeError`."""
        for each in self.ranks.processes:
            each.await_ready()
        self.ranks.send(GO)
        self.group.check()
        if isinstance(self.group, CudaGroup):
            self.ranks.abandon = self.group.abandon
            self.group.watch()

    def plan(self, plan: StepPlan, block_size: int) -> None:
        self._board.publish(encode_plan(plan, block_size))

    def packed(self, step: PackedStep) -> None:
        self._board.publish(encode_packed(step))

    def masks(self, masks: Masks) -> None:
        self._board.publish(encode_masks(masks))
