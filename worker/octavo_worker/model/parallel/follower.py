"""What a further rank does: load its part of the model, then compute what rank 0 posts."""

from __future__ import annotations

import os
import signal
import socket

import msgspec

from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import Masks, StepPlan
from octavo_worker.model.base_runner import CacheConfig
from octavo_worker.model.cache_size import cache_dtype, token_budget
from octavo_worker.model.loading import load_model, set_threads
from octavo_worker.model.parallel.board import Board
from octavo_worker.model.parallel.leader import Member, Sizes
from octavo_worker.model.parallel.memory import RankLost
from octavo_worker.model.parallel.shards import Rank
from octavo_worker.model.parallel.steps import decode
from octavo_worker.model.runner import Computed, PagedRunner
from octavo_worker.rank_processes import MOST_BYTES, READY, REFUSED


def follow(sock: socket.socket, memory: int, index: int, options: ModelOptions) -> None:
    """Serves rank 0, at the other end of `sock`, until it goes, and this process with it."""
    member = Member(Rank(index, options.tensor_parallel), memory)
    try:
        runner, board = _load(sock, member, options)
    except Exception as error:
        sock.send(REFUSED + f"{type(error).__name__}: {error}".encode()[: MOST_BYTES // 2])
        raise
    sock.send(READY)
    try:
        while True:
            _compute(runner, board)
    except RankLost as lost:
        if lost.rank == 0:  # what has stopped cannot see that it is waited for
            os.kill(os.getppid(), signal.SIGKILL)
        raise


def _load(sock: socket.socket, member: Member, options: ModelOptions) -> tuple[PagedRunner, Board]:
    set_threads(options)
    model, _ = load_model(options, member=member)
    assert model.group is not None
    message = sock.recv(MOST_BYTES)
    if not message:
        raise EOFError("rank 0 has gone")
    sizes = msgspec.json.decode(message, type=Sizes)
    cache = CacheConfig(sizes.num_blocks, options.block_size, sizes.num_host_blocks, cache_dtype(options, model))
    runner = PagedRunner(model, cache, sizes.max_model_len, token_budget(options, model.device))
    return runner, Board(model.group.memory, member.rank)


def _compute(runner: PagedRunner, board: Board) -> None:
    plan = decode(board.read())
    assert isinstance(plan, StepPlan)
    launched = runner.launch(plan)
    if plan.has_masked and isinstance(launched, Computed):
        masks = decode(board.read())
        assert isinstance(masks, Masks)
        launched.choose(masks)
