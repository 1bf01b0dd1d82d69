"""How much memory the KV cache takes."""

from __future__ import annotations

import psutil
import torch

from octavo_kernels import ops
from octavo_worker.assembly.state_slots import MOST_SHARE, host_slots, slot_bytes, state_slots
from octavo_worker.assembly.window_blocks import WindowGroup
from octavo_worker.contract.cache import common_window
from octavo_worker.contract.options import TOKEN_BUDGET, ModelOptions
from octavo_worker.contract.windows import Slabs
from octavo_worker.model.causal_model import CacheConfig, CausalModel, layout_of, layouts_of
from octavo_worker.model.errors import ModelError
from octavo_worker.runner.cuda.memory import room_for_cache

DEFAULT_CACHE_BYTES = 1 << 30
DEFAULT_CACHE_SHARE = 0.25  # of the memory available


def cache_config(
    options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel, room: int | None
) -> CacheConfig:
    """The KV cache that the options ask for, or as much as each rank has `room` for (`measured_room`), with what
    `others` have in each block. Block 0 of either pool is never used. Ranks share what is asked for: each has its heads
    of every block."""
    block_bytes, ranks = _block_bytes(options, model, *others), _ranks(model)
    each = ranks * slot_bytes(model)
    both = _for_caches(options, model, block_bytes, max_model_len, *others) if room is None else room
    slots = state_slots(options, model, both)
    budget = options.kv_cache_bytes or ranks * max(0, (room or 0) - slots * slot_bytes(model))
    kept = host_slots(options, each)
    left_on_host = max(0, options.host_cache_bytes - kept * each)
    dtype, slabs = cache_dtype(options, model), None
    group = _window_group(options, model, max_model_len, *others)
    if group is None:
        num_blocks = pool_size(options, model, block_bytes, max_model_len, budget)
        host_blocks = left_on_host // block_bytes if block_bytes else num_blocks * bool(left_on_host)
        windows = host_windows = 0
    else:
        num_blocks, windows, slabs = _group_sizes(options, model, group, max_model_len, budget)
        host_blocks, host_windows = group.on_host(left_on_host)
    host_blocks, kept = (host_blocks + 1, kept) if host_blocks else (0, 0)
    return CacheConfig(num_blocks, options.block_size, host_blocks, dtype, slots, kept, windows, host_windows, slabs)


def _group_sizes(
    options: ModelOptions, model: CausalModel, group: WindowGroup, max_model_len: int, budget: int
) -> tuple[int, int, Slabs | None]:
    """Blocks of either group in `budget` bytes, and the slabs of memory that they share; None if each has its own."""
    slabs = None
    if options.num_blocks is None:
        slabs = group.slabs(budget, pool_size(options, model, group.full_bytes, max_model_len, budget))
    if slabs is not None:
        return slabs.number * slabs.blocks, slabs.number * slabs.windows, slabs
    windows = group.blocks(budget, options.num_blocks)
    left = budget - windows * group.window_bytes
    return pool_size(options, model, group.full_bytes, max_model_len, left), windows, None


def _window_group(
    options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel
) -> WindowGroup | None:
    """Layers with a window, where they have blocks of their own. What `others` have in each block they have in those of
    layers that see all."""
    layouts = layouts_of(model, options.block_size, cache_dtype(options, model))
    full, windowed = (_ranks(model) * layout.block_bytes for layout in layouts)
    beside = _ranks(model) * options.block_size * model.kept_bytes + _block_bytes(options, *others)
    chunk = token_budget(options, model.device)
    return WindowGroup.of(options, model, max_model_len, chunk, (full, windowed), beside)


def _for_caches(
    options: ModelOptions, model: CausalModel, block_bytes: int, max_model_len: int, *others: CausalModel
) -> int:
    """Bytes of each rank for keys, values and states together, where the options name those of keys and values: states
    come beside them, as much again, or what the CPU has for a cache by default. On a GPU states have no more than what
    is left there. Raises `ModelError` where the model alone leaves nothing."""
    asked = options.num_blocks * block_bytes if options.num_blocks else options.kv_cache_bytes or 0
    asked //= _ranks(model)
    both = max(2 * asked, DEFAULT_CACHE_BYTES)
    if model.device.type != "cuda" or not slot_bytes(model):
        return both
    left = room_for_cache(options, model, max_model_len, *others) - asked
    return min(both, int(max(0, left) / MOST_SHARE))


def cache_dtype(options: ModelOptions, model: CausalModel) -> torch.dtype:
    return ops.KV_DTYPES.get(options.kv_dtype, model.dtype)


def _block_bytes(options: ModelOptions, *models: CausalModel) -> int:
    """Bytes of all ranks together."""
    return sum(_ranks(model) * _part_bytes(options, model) for model in models)


def _part_bytes(options: ModelOptions, model: CausalModel) -> int:
    layout = layout_of(model, options.block_size, cache_dtype(options, model))
    return layout.block_bytes + options.block_size * model.kept_bytes


def _ranks(model: CausalModel) -> int:
    return 1 if model.group is None else model.group.rank.count


def asked_bytes(options: ModelOptions, *models: CausalModel) -> int | None:
    """Bytes of each rank's part of a KV cache whose size the options name."""
    blocks = options.num_blocks
    if blocks is not None:
        return blocks * sum(_part_bytes(options, model) for model in models)
    return options.kv_cache_bytes and options.kv_cache_bytes // _ranks(models[0])


def pool_size(options: ModelOptions, model: CausalModel, block_bytes: int, max_model_len: int, budget: int) -> int:
    """Blocks of the KV cache, the null block included.

    `num_blocks` as given, else what has room in the `budget` of bytes of all ranks together. Never more than
    `max_running` sequences of `max_model_len` tokens can fill, of which sliding windows keep a part. Raises
    `ModelError` where fewer than two have room.
    """
    if options.num_blocks is not None:
        blocks = options.num_blocks
    else:
        window = common_window(model.cache)
        kept = min(max_model_len, window + token_budget(options, model.device)) if window else max_model_len
        useful = options.max_running * -(-kept // options.block_size) + 1
        blocks = min(budget // block_bytes, useful) if block_bytes else useful
    if blocks < 2:
        raise ModelError(f"the KV cache has room for {blocks} blocks of {block_bytes} bytes; 2 are the least.")
    return blocks


def measured_room(options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel) -> int | None:
    """Bytes for this rank's part of the KV cache beside loaded models; None where the options name its size. On the
    CPU its share of 1 GiB or of a quarter of the memory available, whichever is less. Raises `ModelError` where nothing
    is left."""
    if options.num_blocks is not None or options.kv_cache_bytes:
        return None
    if model.device.type == "cuda":
        return room_for_cache(options, model, max_model_len, *others)
    return min(DEFAULT_CACHE_BYTES, int(psutil.virtual_memory().available * DEFAULT_CACHE_SHARE)) // _ranks(model)


def token_budget(options: ModelOptions, device: torch.device) -> int:
    return options.token_budget or TOKEN_BUDGET[device.type]
