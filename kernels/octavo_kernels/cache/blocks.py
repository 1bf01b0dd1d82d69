"""The paged KV cache, as `octavo_kernels.ops` describes it: its layout, writing to it, copying its blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import _cpu, checks, cuda
from octavo_kernels.call import Call, Operation, check, check_heads, float_type, rows_of, run
from octavo_kernels.operands import DTYPES, address, rows_at

KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
CELLS = {torch.int8: 1, torch.float8_e4m3fn: 2}
BLOCK_MULTIPLE = 16
SMALL_BLOCKS = (4, 8)  # on the CPU
HEAD_DIM_MULTIPLE = 8
SCALE_BYTES = 4


def check_block_size(block_size: int, device: torch.device) -> None:
    """Raises `ValueError` for one that no cache on `device` can have."""
    if block_size not in SMALL_BLOCKS and (block_size < 1 or block_size % BLOCK_MULTIPLE):
        raise ValueError(f"block_size must be 4, 8 or a multiple of {BLOCK_MULTIPLE}, not {block_size}")
    if device.type == "cuda":
        cuda.check_cache(block_size)


def _check_head_dim(head_dim: int) -> None:
    if not 0 < head_dim <= _cpu.max_head_dim or head_dim % HEAD_DIM_MULTIPLE:
        raise ValueError(
            f"head_dim must be a multiple of {HEAD_DIM_MULTIPLE} up to {_cpu.max_head_dim}, not {head_dim}"
        )


def check_cache_type(name: str, dtype: torch.dtype) -> None:
    """Checks the type of a cache. Raises TypeError."""
    if dtype not in DTYPES and dtype not in CELLS:
        raise TypeError(f"{name} must be float32, bfloat16, float16, int8 or float8_e4m3fn, not {dtype}")


def _cells_of_head(block_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Elements that K or V of one block and head take, scales included."""
    return block_size * (head_dim + SCALE_BYTES if dtype in CELLS else head_dim)


def cache_layout(cache: Tensor, dtype: torch.dtype, kv_heads: int, head_dim: int, block_size: int) -> tuple[int, ...]:
    """Address, kind of cells, block, K-to-V and head strides, block size: what a module calls a cache."""
    check_block_size(block_size, cache.device)
    _check_head_dim(head_dim)
    if cache.dtype in CELLS:
        dtype = cache.dtype
    check("layer_cache", cache, dtype, (None, 2, kv_heads, _cells_of_head(block_size, head_dim, dtype)))
    block, kv, head, _ = cache.stride()
    return cache.data_ptr(), CELLS.get(dtype, 0), block, kv, head, block_size


def block_bytes(layers: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one block of a cache of `dtype`, all layers."""
    return 2 * layers * kv_heads * _cells_of_head(block_size, head_dim, dtype) * dtype.itemsize


def empty_cache(
    num_blocks: int,
    layers: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Tensor:
    """An uninitialised KV cache `[num_blocks, layers, 2, kv_heads, block_size * head_dim]` (longer in eight bits).

    `dtype` is that of the data to come, or int8 or float8_e4m3fn, which take data of any type. `block_size` is a
    multiple of 16, on the CPU also 4 or 8, `head_dim` a multiple of 8 up to 512. A block's bytes are contiguous. Raises
    ValueError for other sizes, TypeError for other types.
    """
    check_cache_type("dtype", dtype)
    check_block_size(block_size, torch.device(device))
    _check_head_dim(head_dim)
    for name, size in (("num_blocks", num_blocks), ("layers", layers), ("kv_heads", kv_heads)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
    cells = _cells_of_head(block_size, head_dim, dtype)
    return torch.empty((num_blocks, layers, 2, kv_heads, cells), dtype=dtype, device=device)


def write_kv(k: Tensor, v: Tensor, layer_cache: Tensor, slots: Tensor, block_size: int = 16) -> None:
    """Writes K and V, both `[T, kv_heads, head_dim]`, to `slots[T]` (int64) of the layer's cache.

    slot = block * block_size + offset; a slot of -1 skips the token (padding). Raises ValueError or TypeError for
    tensors that do not fit the cache.
    """
    dtype = float_type("k", k)
    if k.dim() != 3:
        raise ValueError(f"k must have shape [tokens, kv_heads, head_dim], not {list(k.shape)}")
    tokens, kv_heads, head_dim = k.shape
    check("k", k, k.dtype, (tokens, kv_heads, head_dim))
    check("v", v, k.dtype, (tokens, kv_heads, head_dim))
    check_heads("k", k)
    check_heads("v", v)
    check("slots", slots, torch.int64, (tokens,))
    cache = cache_layout(layer_cache, k.dtype, kv_heads, head_dim, block_size)
    if checks.wanted(slots):
        checks.writes(layer_cache, block_size, slots)
    run(
        "write_kv", {"k": k, "v": v, "layer_cache": layer_cache, "slots": slots},
        dtype, rows_at(k), rows_at(v), tokens, kv_heads, head_dim, cache, slots.data_ptr(),
    )  # fmt: skip


@Operation
def rope_write_kv(
    qkv: Tensor,
    q_out: Tensor,
    layer_cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    block_size: int = 16,
    norm_offset: float = 0.0,
) -> Call:
    """Optional per-head RMS norm of q and k, rotary embedding, then K and V into the layer's cache; returns `q_out`.

    `qkv[T, (heads + 2 * kv_heads) * head_dim]` is a packed projection: q, k, v. `q_out[T, heads, head_dim]`.
    `slots[T]` and `positions[T]` are int64; a slot of -1 skips the write (padding).
    `cos_sin[max_pos, rotary_dim]` (float32, first half cos, second half sin) rotates the first `rotary_dim` values of a
    head in halves (RoFormer, arXiv 2104.09864); None rotates nothing.
    `q_norm`, `k_norm`: weights `[head_dim]`, applied as `norm_offset + weight`.
    On CUDA `positions`, `cos_sin` and the weights are read before the stream's previous kernel has ended: they must be
    older than it.
    """
    dtype = float_type("qkv", qkv)
    heads = _check_packed(qkv, q_out, layer_cache.shape[-2])
    tokens = len(qkv)
    cache = cache_layout(layer_cache, qkv.dtype, heads[1], heads[2], block_size)
    check("slots", slots, torch.int64, (tokens,))
    check("positions", positions, torch.int64, (tokens,))
    rotary_dim = 0 if cos_sin is None else _check_angles(cos_sin, heads[2])
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None:
            check(name, weight, qkv.dtype, (heads[2],))
    if checks.wanted(slots):
        checks.writes(layer_cache, block_size, slots)
        if cos_sin is not None:
            checks.in_range("positions", positions, 0, cos_sin.shape[0], "rows of cos_sin")
    tensors = {
        "qkv": qkv, "q_out": q_out, "layer_cache": layer_cache, "slots": slots, "positions": positions,
        "cos_sin": cos_sin, "q_norm": q_norm, "k_norm": k_norm,
    }  # fmt: skip
    return Call(
        "rope_write_kv", tensors,
        (dtype, rows_at(qkv), rows_at(q_out), tokens, heads, cache, slots.data_ptr(),
        (positions.data_ptr(), *rows_at(cos_sin), rotary_dim),
        (address(q_norm), address(k_norm), eps, norm_offset)), q_out,
    )  # fmt: skip


def _check_packed(qkv: Tensor, q_out: Tensor, kv_heads: int) -> tuple[int, int, int]:
    """Query heads, KV heads and head dim."""
    tokens, packed = rows_of("qkv", qkv)
    if q_out.dim() != 3:
        raise ValueError(f"q_out must have shape [tokens, heads, head_dim], not {list(q_out.shape)}")
    _, heads, head_dim = q_out.shape
    check("q_out", q_out, qkv.dtype, (tokens, heads, head_dim))
    check_heads("q_out", q_out)
    if packed != (heads + 2 * kv_heads) * head_dim:
        raise ValueError(
            f"qkv must have (heads + 2 * kv_heads) * head_dim = ({heads} + 2 * {kv_heads}) * {head_dim} columns, "
            f"not {packed}"
        )
    return heads, kv_heads, head_dim


def _check_angles(cos_sin: Tensor, head_dim: int) -> int:
    check("cos_sin", cos_sin, torch.float32, (None, None))
    rotary_dim: int = cos_sin.shape[1]
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(f"cos_sin must have an even number of columns up to head_dim {head_dim}, not {rotary_dim}")
    return rotary_dim


def _check_blocks(name: str, cache: Tensor) -> None:
    """Raises `ValueError` unless each row of `cache[num_blocks, ...]` is a whole block."""
    if cache.dim() < 2 or not cache.is_contiguous():
        raise ValueError(f"{name} must be the whole contiguous cache, not a layer of it")


def copy_blocks(kv_cache: Tensor, pairs: Tensor) -> None:
    """Copies whole blocks, all layers: `pairs[n, 2]` int64 (source, target).

    Copies run at the same time: no target may appear twice or as a source. Raises ValueError for a part of a cache, or
    pairs that are not contiguous.
    """
    check_cache_type("kv_cache", kv_cache.dtype)
    _check_blocks("kv_cache", kv_cache)
    check("pairs", pairs, torch.int64, (None, 2))
    if not pairs.is_contiguous():
        raise ValueError(f"pairs must be contiguous; its strides are {pairs.stride()}")
    if checks.wanted(pairs):
        checks.in_range("pairs", pairs, 0, kv_cache.shape[0], "block ids")
    if not kv_cache.numel():  # of a model without keys
        return
    run(
        "copy_blocks", {"kv_cache": kv_cache, "pairs": pairs},
        kv_cache.data_ptr(), kv_cache.stride(0) * kv_cache.itemsize, pairs.data_ptr(), pairs.shape[0],
    )  # fmt: skip


def swap_blocks(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    """Copies whole blocks, all layers, from one cache to another, of which one may be on the CPU, in pinned memory.

    `pairs[n, 2]` int64 on the CPU: (block of `source`, block of `target`). With a cache on a GPU this only starts the
    copies, on the current stream: one a block, by the copy engines. Raises ValueError for a part of a cache, or pairs
    that are not on the CPU.
    """
    check_cache_type("source", source.dtype)
    check("target", target, source.dtype, (None, *source.shape[1:]))
    for name, cache in (("source", source), ("target", target)):
        _check_blocks(name, cache)
    check("pairs", pairs, torch.int64, (None, 2))
    if not pairs.is_cpu:
        raise ValueError(f"pairs is on {pairs.device}, but must be on the CPU, which starts the copies")
    if checks.wanted(pairs):
        checks.in_range("pairs", pairs[:, 0], 0, len(source), "block ids of source")
        checks.in_range("pairs", pairs[:, 1], 0, len(target), "block ids of target")
    if source.is_cpu and target.is_cpu:
        for old, new in pairs.tolist():  # one after the other: gathering them first would touch all memory twice more
            target[new].copy_(source[old])
        return
    if not source.numel():
        return
    cuda.run(
        "swap_blocks", target.device if source.is_cpu else source.device,
        source.data_ptr(), target.data_ptr(), source.stride(0) * source.itemsize, pairs.contiguous().data_ptr(),
        pairs.shape[0],
    )  # fmt: skip
