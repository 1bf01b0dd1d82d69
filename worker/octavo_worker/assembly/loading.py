"""From options to a runner, step by step."""

from __future__ import annotations

import logging

import torch

from octavo_kernels import cuda, ops
from octavo_kernels.cache.pools import reads_host
from octavo_kernels.features import Feature, features
from octavo_worker.assembly.cache_size import asked_bytes, cache_config, measured_room, token_budget
from octavo_worker.assembly.guessers import load_guesser
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.cache import common_window
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.windows import blocks_for_one
from octavo_worker.model.causal_model import CacheConfig, CausalModel
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import ModelError
from octavo_worker.ranks.processes import Ranks
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.cuda.copies import keep_copies
from octavo_worker.runner.cuda.memory import room_for_cache
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.paged import PagedRunner
from octavo_worker.runner.parallel.leader import Leader, Member
from octavo_worker.runner.speeds import measure_speeds, measure_steps

log = logging.getLogger(__name__)


def load_runner(options: ModelOptions, ranks: Ranks | None = None) -> PagedRunner | CudaRunner:
    """Loads the model and allocates its KV cache. A model on several ranks has its further ones in `ranks`, which are
    started here if they were not before. Raises `ModelError`, `RanksFailed` or `ExchangeError` with the next step to
    take."""
    set_threads(options)
    check_combinations(options)
    if options.tensor_parallel > 1 and ranks is None:
        ranks = Ranks.start(options)
    member = None if ranks is None else Member(Rank(0, options.tensor_parallel), ranks.memory)
    model, wanted_len = load_model(options, member=member)
    guesser = load_guesser(options, model, wanted_len)
    copy_weights(options, model, wanted_len, *guesser.models)
    room = measured_room(options, model, wanted_len, *guesser.models)
    leader = None if ranks is None else Leader.of(ranks, model)
    if leader is not None:
        room = leader.least_room(room)
    cache = cache_config(options, model, wanted_len, *guesser.models, room=room)
    guesser.prepare(cache)
    max_model_len = fitting_length(options, model, cache, wanted_len)
    if leader is not None:
        leader.begin(cache, max_model_len)
    runner = make_runner(options, model, cache, max_model_len, leader)
    if leader is not None:
        leader.join()
    runner.warm_up()
    guesser.attach(runner, cache)
    measure(options, runner)
    return runner


def check_combinations(options: ModelOptions) -> None:
    """Raises `ModelError` for options that exclude each other."""
    if options.tensor_parallel > 1 and options.runner_guesses:
        kind = options.speculate.partition(":")[0]
        raise ModelError(f"--speculate {kind}: runs on one rank; give ngram or suffix, or leave --tensor-parallel out.")


def fitting_length(options: ModelOptions, model: CausalModel, cache: CacheConfig, wanted_len: int) -> int:
    """The longest sequence that the KV memory holds, at most `wanted_len`."""
    readable = cache.num_host_blocks - 1 if cache.num_host_blocks and reads_host(model.device) else 0
    device = blocks_for_one(cache.num_blocks, cache.slabs)
    capacity = Capacity(device, options.block_size, readable, common_window(model.cache))
    fitting = min(wanted_len, capacity.longest or wanted_len)
    if fitting < wanted_len:
        message = "max_model_len clamped from %d to %d, which is what the KV memory holds: %s"
        log.warning(message, wanted_len, fitting, capacity)
    return fitting


def measure(options: ModelOptions, runner: PagedRunner | CudaRunner) -> None:
    """Time what the engine weighs: moving blocks against computing them again, and steps by their rows."""
    if runner.num_host_blocks:
        runner.speeds = measure_speeds(runner)
    if options.drafts:
        runner.step_seconds = measure_steps(runner, options.max_running, options.drafts)


def copy_weights(options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel) -> None:
    """Keeps quantised weights in 16 bits as well, where the device has room for that."""
    if isinstance(model, Decoder) and any(linear.copy_bytes for linear in model.layers.linears):
        room = room_for_cache(options, model, max_model_len, *others)
        keep_copies(model.layers.linears, room, asked_bytes(options, model, *others))


def make_runner(
    options: ModelOptions, model: CausalModel, cache: CacheConfig, max_model_len: int, leader: Leader | None = None
) -> PagedRunner | CudaRunner:
    """A rank's runner: that of the first of several has a `leader`."""
    budget = token_budget(options, model.device)
    if model.device.type == "cpu":
        return PagedRunner(model, cache, max_model_len, budget, leader)
    graphs = options.cuda_graphs and Feature.GRAPHS in features(model.device)
    if options.cuda_graphs and not graphs:
        log.info("steps launch their kernels one by one: graphs on %s were never tried", cuda.compiled.built_for)
    return CudaRunner(
        model,
        cache,
        max_model_len,
        budget,
        max_running=options.max_running,
        most_samples=options.most_samples,
        drafts=options.drafts,
        graphs=graphs,
        leader=leader,
    )


def set_threads(options: ModelOptions) -> None:
    """As given, else one a core, of which ranks have equal shares: threads that spin for one core halve their speed."""
    threads = options.threads
    if threads is None and options.tensor_parallel > 1:
        threads = max(1, ops.num_threads() // options.tensor_parallel)
    if threads:
        torch.set_num_threads(threads)
        ops.set_num_threads(threads)
