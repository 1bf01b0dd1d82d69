"""Rank 0's side of a model on several ranks."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch

from octavo_worker.contract.step import Masks, StepPlan
from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.parallel.board import Board
from octavo_worker.model.parallel.cpu_group import CpuGroup
from octavo_worker.model.parallel.group import Group
from octavo_worker.model.parallel.memory import RankMemory
from octavo_worker.model.parallel.shards import Rank, vocabulary_of
from octavo_worker.model.parallel.steps import encode_masks, encode_plan
from octavo_worker.rank_processes import Ranks

GATHERED_ROWS = 8
"""Of logits, in one exchange: more go in several."""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank, and the descriptor of the memory that it shares with the others."""

    rank: Rank
    memory: int

    def join(self, config: DecoderConfig, rows: int, dtype: torch.dtype) -> Group:
        """The group of a decoder's ranks, with room for the hidden states of `rows` tokens. Raises `RanksFailed`."""
        hidden = rows * config.hidden_size * dtype.itemsize
        logits = GATHERED_ROWS * len(vocabulary_of(config.vocab_size, Rank(0, self.rank.count))) * 4
        return CpuGroup(RankMemory(self.memory, self.rank, max(hidden, logits)), self.rank)


class Sizes(msgspec.Struct, frozen=True):
    """What rank 0 decides of all ranks' memory: block ids are the same on each."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int


class Leader:
    """Tells the other ranks what to compute, before rank 0 computes it."""

    def __init__(self, ranks: Ranks, group: Group) -> None:
        self.ranks = ranks
        self._board = Board(group.memory, group.rank)

    def begin(self, sizes: Sizes) -> None:
        """Returns once all ranks are ready. Raises `RanksFailed`, with the reason, if one is not to be."""
        self.ranks.send(msgspec.json.encode(sizes))
        for each in self.ranks.processes:
            each.await_ready()

    def plan(self, plan: StepPlan, block_size: int) -> None:
        self._board.publish(encode_plan(plan, block_size))

    def masks(self, masks: Masks) -> None:
        self._board.publish(encode_masks(masks))
