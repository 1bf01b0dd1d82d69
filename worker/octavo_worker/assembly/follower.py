"""A further rank's process: it loads its part of the model, then computes what rank 0 posts."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from typing import Protocol

import msgspec

from octavo_worker.assembly.cache_size import cache_dtype, measured_room
from octavo_worker.assembly.loading import copy_weights, make_runner, set_threads
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.messages import StartRefused
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import Masks, StepPlan
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.ranks.board import Board
from octavo_worker.ranks.cuda_group import CudaGroup
from octavo_worker.ranks.memory import RankLost
from octavo_worker.ranks.processes import MOST_BYTES, READY, REFUSED
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.cuda.launched import LaunchedStep
from octavo_worker.runner.cuda.packer import PackedStep
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.paged import Computed, PagedRunner
from octavo_worker.runner.parallel.leader import Loaded, Member, Sizes
from octavo_worker.runner.parallel.packed_steps import decode_packed
from octavo_worker.runner.parallel.steps import decode


def follow(sock: socket.socket, memory: int, index: int, options: ModelOptions) -> None:
    """Serves rank 0, at the other end of `sock`, until it goes, and this process with it."""
    member = Member(Rank(index, options.tensor_parallel), memory)
    try:
        runner, board = _load(sock, member, options)
    except StartRefused as refusal:
        sock.send(REFUSED + str(refusal).encode()[: MOST_BYTES // 2])
        sock.recv(MOST_BYTES)  # rank 0 says it, and then goes
        sys.exit(1)
    except Exception as error:
        sock.send(REFUSED + f"{type(error).__name__}: {error}".encode()[: MOST_BYTES // 2])
        raise
    sock.send(READY)
    _await(sock)  # what a GPU waits for has to come within seconds
    group = runner.model.group
    assert group is not None
    group.check()
    if isinstance(group, CudaGroup):
        group.watch(_end)
    try:
        if isinstance(runner, CudaRunner):
            runner.warm_up()
            gc.freeze()  # others would wait while a collection walked the model
            while True:
                compute_packed(runner, board)
        while True:
            compute_plan(runner, board)
    except RankLost as lost:
        _end(lost)
        raise


def _end(lost: RankLost) -> None:
    """Ends rank 0, if it is that which is lost: what has stopped cannot see that it is waited for."""
    if lost.rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)


def _load(sock: socket.socket, member: Member, options: ModelOptions) -> tuple[PagedRunner | CudaRunner, Board]:
    set_threads(options)
    model, wanted_len = load_model(options, member=member)
    group = model.group
    assert group is not None
    copy_weights(options, model, wanted_len)
    sock.send(msgspec.json.encode(Loaded(measured_room(options, model, wanted_len), group.handle)))
    sizes = msgspec.json.decode(_await(sock), type=Sizes)
    group.connect(sizes.handles)
    states = sizes.num_state_slots, sizes.num_host_state_slots
    windows = sizes.num_window_blocks, sizes.num_host_window_blocks
    dtype = cache_dtype(options, model)
    cache = CacheConfig(
        sizes.num_blocks, options.block_size, sizes.num_host_blocks, dtype, *states, *windows, slabs=sizes.slabs
    )
    return make_runner(options, model, cache, sizes.max_model_len), Board(group.memory, member.rank)


def _await(sock: socket.socket) -> bytes:
    message = sock.recv(MOST_BYTES)
    if not message:
        raise EOFError("rank 0 has gone")
    return message


def compute_plan(runner: PagedRunner, board: Board) -> None:
    """Waits for the next step, and for its masks if some of its samples are chosen late."""
    plan = decode(board.read())
    assert isinstance(plan, StepPlan)
    launched = runner.launch(plan)
    if plan.has_masked and isinstance(launched, Computed):
        launched.choose(_masks(board))


class PackedRunner(Protocol):
    """A `CudaRunner` as a further rank sees it."""

    def follow(self, packed: PackedStep) -> LaunchedStep: ...


def compute_packed(runner: PackedRunner, board: Board) -> None:
    """As `compute_plan`, where the first rank has packed the step. It is under way when this returns."""
    step = runner.follow(decode_packed(board.read()))
    if step.is_chosen_late:
        step.choose(_masks(board))


def _masks(board: Board) -> Masks:
    masks = decode(board.read())
    assert isinstance(masks, Masks)
    return masks
