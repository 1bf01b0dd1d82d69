"""How much memory the KV cache takes."""

from __future__ import annotations

import psutil
import torch

from octavo_kernels import ops
from octavo_worker.contract.options import TOKEN_BUDGET, ModelOptions
from octavo_worker.model.base_runner import CacheConfig, CausalModel
from octavo_worker.model.cuda.memory import room_for_cache
from octavo_worker.model.errors import ModelError

DEFAULT_CACHE_BYTES = 1 << 30
DEFAULT_CACHE_SHARE = 0.25  # of the memory available


def cache_config(options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel) -> CacheConfig:
    """The KV cache that the options ask for and the device has room for, with what `others` have in each block. Block 0
    of either pool is never used. Ranks share what is asked for: each has its heads of every block."""
    block_bytes = _block_bytes(options, model, *others)
    num_blocks = pool_size(options, model, block_bytes, max_model_len, *others)
    host_blocks = options.host_cache_bytes // block_bytes
    dtype = cache_dtype(options, model)
    return CacheConfig(num_blocks, options.block_size, host_blocks + 1 if host_blocks else 0, dtype)


def cache_dtype(options: ModelOptions, model: CausalModel) -> torch.dtype:
    return ops.KV_DTYPES.get(options.kv_dtype, model.dtype)


def _block_bytes(options: ModelOptions, *models: CausalModel) -> int:
    """Of all ranks together."""
    return sum(_ranks(model) * _part_bytes(options, model) for model in models)


def _part_bytes(options: ModelOptions, model: CausalModel) -> int:
    size, dtype = options.block_size, cache_dtype(options, model)
    return ops.block_bytes(model.num_layers, model.num_kv_heads, size, model.head_dim, dtype)


def _ranks(model: CausalModel) -> int:
    return 1 if model.group is None else model.group.rank.count


def asked_bytes(options: ModelOptions, *models: CausalModel) -> int | None:
    """Bytes of a KV cache whose size the options name."""
    blocks = options.num_blocks
    return options.kv_cache_bytes if blocks is None else blocks * _block_bytes(options, *models)


def pool_size(
    options: ModelOptions, model: CausalModel, block_bytes: int, max_model_len: int, *others: CausalModel
) -> int:
    """Blocks of the KV cache, the null block included.

    `num_blocks` as given, else `kv_cache_bytes`, else what the device has room for: on the CPU 1 GiB or a quarter of
    the memory available, whichever is less. Never more than `max_running` sequences of `max_model_len` tokens can fill,
    of which sliding windows keep a part.
    """
    if options.num_blocks is not None:
        blocks = options.num_blocks
    else:
        budget = options.kv_cache_bytes or _room(options, model, max_model_len, *others)
        kept = min(max_model_len, model.window + token_budget(options, model.device)) if model.window else max_model_len
        useful = options.max_running * -(-kept // options.block_size) + 1
        blocks = min(budget // block_bytes, useful)
    if blocks < 2:
        raise ModelError(f"the KV cache has room for {blocks} blocks of {block_bytes} bytes; 2 are the least.")
    return blocks


def _room(options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel) -> int:
    """Bytes for the KV cache beside loaded models."""
    if model.device.type == "cuda":
        return room_for_cache(options, model, max_model_len, *others)
    return min(DEFAULT_CACHE_BYTES, int(psutil.virtual_memory().available * DEFAULT_CACHE_SHARE))


def token_budget(options: ModelOptions, device: torch.device) -> int:
    return options.token_budget or TOKEN_BUDGET[device.type]
