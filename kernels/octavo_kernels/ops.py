"""Operations on torch tensors, one signature for every device.

The paged KV cache is one tensor `[num_blocks, layers, 2, kv_heads, block_size * head_dim]`, made by `empty_cache`.
What lies inside the last dimension belongs to the kernels (K is stored transposed): Python never reads it.
`layer_cache = kv_cache[:, layer]` is what the layer's operations take; strides are passed on.

A cache of int8 or float8_e4m3fn goes with data of any dtype. Each token has a float32 scale for K and one for V of each
KV head: the largest magnitude over 127 (448 for fp8), the largest code. A cell is the value over the scale, rounded to
nearest, ties to even. The scales lie behind the cells, so the last dimension is `block_size * (head_dim + 4)` bytes, in
which both the cells and the scales `[block_size]` begin at multiples of 64, and a block stays one piece of memory.

Ragged batches: T tokens of S sequences, `query_start[S + 1]` (int32) gives each sequence's range of rows.
Index tensors are int32 unless stated. Data are float32, bfloat16 or float16, sums are float32. `out` tensors are
written in place and returned; where `out` is None a new tensor is made. A tensor of the wrong type raises `TypeError`,
one of the wrong shape, stride or device `ValueError`; both name the argument. The values inside index tensors (slots,
block tables, lengths, positions) are the caller's to keep in range: they are checked with `OCTAVO_CHECK=1` only.

On the CPU every operation computes each row (token) with an arithmetic that depends neither on the other rows, nor on
how many there are, nor on the number of threads: results are equal bit for bit however sequences are batched or prompts
are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from octavo_kernels import _cpu, checks, cuda
from octavo_kernels.operands import Ahead, RmsNorm

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}
KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
CELLS = {torch.int8: 1, torch.float8_e4m3fn: 2}
BLOCK_MULTIPLE = 16
HEAD_DIM_MULTIPLE = 8
SCALE_BYTES = 4

Gate = Literal["silu", "gelu", "gelu_tanh"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Rows must be dense; the distance between rows is free. None in `shape` stands for any size.

    A decode step passes here hundreds of times, so the good case is decided first and without building anything.
    """
    got = tensor.shape
    if tensor.dtype is dtype and len(got) == len(shape):
        for want, size in zip(shape, got, strict=True):
            if want is not None and want != size:
                break
        else:
            _check_layout(name, tensor)
            return
    if tensor.dtype is not dtype:
        raise TypeError(f"{name} must be {dtype}, not {tensor.dtype}")
    wanted = ", ".join("*" if want is None else str(want) for want in shape)
    raise ValueError(f"{name} must have shape [{wanted}], not {list(got)}")


def _check_layout(name: str, tensor: Tensor) -> None:
    if tensor.dim() and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(f"{name} must be contiguous in its last dimension; its strides are {tensor.stride()}")


def _check_devices(tensors: dict[str, Tensor | None]) -> torch.device:
    """Returns the device that all tensors must share."""
    given = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    device = next(iter(given.values()))
    for name, other in given.items():
        if other.type not in ("cpu", "cuda"):
            raise ValueError(f"{name} is on {other}; there are kernels for the CPU and for CUDA")
        if other != device:
            raise ValueError(f"{name} is on {other}, but {next(iter(given))} is on {device}")
    return device


def _run(operation: str, tensors: dict[str, Tensor | None], *arguments: object) -> None:
    """Calls the module of the tensors' device."""
    if all(tensor is None or tensor.is_cpu for tensor in tensors.values()):
        getattr(_cpu, operation)(*arguments)
    else:
        cuda.run(operation, _check_devices(tensors), *arguments)


@dataclass(frozen=True, slots=True)
class _Call:
    """An operation with checked arguments."""

    operation: str
    tensors: dict[str, Tensor | None]
    arguments: tuple[object, ...]

    def run(self) -> None:
        _run(self.operation, self.tensors, *self.arguments)


def _check_heads(name: str, tensor: Tensor) -> None:
    if tensor.shape[1] > 1 and tensor.stride(1) != tensor.shape[2]:
        raise ValueError(f"{name} must have its heads side by side; its strides are {tensor.stride()}")


def _float_type(name: str, tensor: Tensor) -> int:
    code = DTYPES.get(tensor.dtype)
    if code is None:
        raise TypeError(f"{name} must be float32, bfloat16 or float16, not {tensor.dtype}")
    return code


def _rows(name: str, tensor: Tensor) -> tuple[int, int]:
    if tensor.dim() != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {list(tensor.shape)}")
    _check_layout(name, tensor)
    return tensor.shape[0], tensor.shape[1]


def _output(out: Tensor | None, like: Tensor, shape: tuple[int, int]) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    _check("out", out, like.dtype, shape)
    return out


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _check_sizes(block_size: int, head_dim: int) -> None:
    if block_size < 1 or block_size % BLOCK_MULTIPLE:
        raise ValueError(f"block_size must be a multiple of {BLOCK_MULTIPLE}, not {block_size}")
    if not 0 < head_dim <= _cpu.max_head_dim or head_dim % HEAD_DIM_MULTIPLE:
        raise ValueError(
            f"head_dim must be a multiple of {HEAD_DIM_MULTIPLE} up to {_cpu.max_head_dim}, not {head_dim}"
        )


def _check_cache_type(name: str, dtype: torch.dtype) -> None:
    if dtype not in DTYPES and dtype not in CELLS:
        raise TypeError(f"{name} must be float32, bfloat16, float16, int8 or float8_e4m3fn, not {dtype}")


def _cells_of_head(block_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Elements that K or V of one block and head take, scales included."""
    return block_size * (head_dim + SCALE_BYTES if dtype in CELLS else head_dim)


def _cache_layout(cache: Tensor, dtype: torch.dtype, kv_heads: int, head_dim: int, block_size: int) -> tuple[int, ...]:
    """Address, kind of cells, block, K-to-V and head strides, block size: what a module calls a cache."""
    _check_sizes(block_size, head_dim)
    if cache.dtype in CELLS:
        dtype = cache.dtype
    if cache.is_cuda:
        cuda.check_cache(block_size)
    _check("layer_cache", cache, dtype, (None, 2, kv_heads, _cells_of_head(block_size, head_dim, dtype)))
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
    multiple of 16, `head_dim` a multiple of 8 up to 512. A block's bytes are contiguous.
    """
    _check_cache_type("dtype", dtype)
    _check_sizes(block_size, head_dim)
    if torch.device(device).type == "cuda":
        cuda.check_cache(block_size)
    for name, size in (("num_blocks", num_blocks), ("layers", layers), ("kv_heads", kv_heads)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
    cells = _cells_of_head(block_size, head_dim, dtype)
    return torch.empty((num_blocks, layers, 2, kv_heads, cells), dtype=dtype, device=device)


def write_kv(k: Tensor, v: Tensor, layer_cache: Tensor, slots: Tensor, block_size: int = 16) -> None:
    """Writes K and V, both `[T, kv_heads, head_dim]`, to `slots[T]` (int64) of the layer's cache.

    slot = block * block_size + offset; a slot of -1 skips the token (padding).
    """
    dtype = _float_type("k", k)
    if k.dim() != 3:
        raise ValueError(f"k must have shape [tokens, kv_heads, head_dim], not {list(k.shape)}")
    tokens, kv_heads, head_dim = k.shape
    _check("k", k, k.dtype, (tokens, kv_heads, head_dim))
    _check("v", v, k.dtype, (tokens, kv_heads, head_dim))
    _check_heads("k", k)
    _check_heads("v", v)
    _check("slots", slots, torch.int64, (tokens,))
    cache = _cache_layout(layer_cache, k.dtype, kv_heads, head_dim, block_size)
    if checks.wanted(slots):
        checks.writes(layer_cache, block_size, slots)
    _run(
        "write_kv", {"k": k, "v": v, "layer_cache": layer_cache, "slots": slots},
        dtype, k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), tokens, kv_heads, head_dim, *cache,
        slots.data_ptr(),
    )  # fmt: skip


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
    interleaved: bool = False,
    norm_offset: float = 0.0,
) -> Tensor:
    """Optional per-head RMS norm of q and k, rotary embedding, then K and V into the layer's cache; returns `q_out`.

    `qkv[T, (heads + 2 * kv_heads) * head_dim]` is a packed projection: q, k, v. `q_out[T, heads, head_dim]`.
    `slots[T]` and `positions[T]` are int64; a slot of -1 skips the write (padding).
    `cos_sin[max_pos, rotary_dim]` (float32, first half cos, second half sin) rotates the first `rotary_dim` values of a
    head, in halves or, `interleaved`, in neighbouring pairs (RoFormer, arXiv 2104.09864); None rotates nothing.
    `q_norm`, `k_norm`: weights `[head_dim]`, applied as `norm_offset + weight`.
    """
    _rope_write_kv(
        qkv, q_out, layer_cache, slots, positions, cos_sin, q_norm, k_norm, eps, block_size, interleaved, norm_offset
    ).run()
    return q_out


def _rope_write_kv(
    qkv: Tensor,
    q_out: Tensor,
    layer_cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    block_size: int,
    interleaved: bool,
    norm_offset: float,
) -> _Call:
    dtype = _float_type("qkv", qkv)
    tokens, packed = _rows("qkv", qkv)
    if q_out.dim() != 3:
        raise ValueError(f"q_out must have shape [tokens, heads, head_dim], not {list(q_out.shape)}")
    _, heads, head_dim = q_out.shape
    _check("q_out", q_out, qkv.dtype, (tokens, heads, head_dim))
    _check_heads("q_out", q_out)
    kv_heads = layer_cache.shape[-2]
    if packed != (heads + 2 * kv_heads) * head_dim:
        raise ValueError(
            f"qkv must have (heads + 2 * kv_heads) * head_dim = ({heads} + 2 * {kv_heads}) * {head_dim} columns, "
            f"not {packed}"
        )
    cache = _cache_layout(layer_cache, qkv.dtype, kv_heads, head_dim, block_size)
    _check("slots", slots, torch.int64, (tokens,))
    _check("positions", positions, torch.int64, (tokens,))
    table, table_stride, rotary_dim = 0, 0, 0
    if cos_sin is not None:
        _check("cos_sin", cos_sin, torch.float32, (None, None))
        table, table_stride, rotary_dim = cos_sin.data_ptr(), cos_sin.stride(0), cos_sin.shape[1]
        if rotary_dim % 2 or rotary_dim > head_dim:
            raise ValueError(f"cos_sin must have an even number of columns up to head_dim {head_dim}, not {rotary_dim}")
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None:
            _check(name, weight, qkv.dtype, (head_dim,))
    if checks.wanted(slots):
        checks.writes(layer_cache, block_size, slots)
        if cos_sin is not None:
            checks.in_range("positions", positions, 0, cos_sin.shape[0], "rows of cos_sin")
    tensors = {
        "qkv": qkv, "q_out": q_out, "layer_cache": layer_cache, "slots": slots, "positions": positions,
        "cos_sin": cos_sin, "q_norm": q_norm, "k_norm": k_norm,
    }  # fmt: skip
    return _Call(
        "rope_write_kv", tensors,
        (dtype, qkv.data_ptr(), qkv.stride(0), q_out.data_ptr(), q_out.stride(0), tokens, heads, kv_heads, head_dim,
        *cache, slots.data_ptr(), positions.data_ptr(), table, table_stride, rotary_dim, interleaved,
        _address(q_norm), _address(k_norm), eps, norm_offset),
    )  # fmt: skip


def paged_attention(
    q: Tensor,
    layer_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    out: Tensor,
    scale: float,
    block_size: int = 16,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    plan: cuda.AttentionPlan | None = None,
) -> Tensor:
    """Causal attention of `q[T, heads, head_dim]` over the paged cache, decode and prefill in one ragged call.

    `block_tables[S, max_blocks]`, `context_lens[S]` (the call's tokens included) and `query_start[S + 1]` are int32.
    Bottom-right aligned: query i of a sequence with n queries and context L sees keys j <= L - n + i, and with
    `sliding_window` w > 0 only j > L - n + i - w; blocks that no query sees are not read. A query that sees nothing
    gives zeros. `softcap` c > 0: scores become c * tanh(score / c). `sinks[heads]` (float32): a logit for each head
    that joins the softmax's denominator only. `heads` is a multiple of the cache's `kv_heads`.
    `plan`: on CUDA, lists updated for this step's lengths, shared by its layers; without one each call makes its own.
    PagedAttention (arXiv 2309.06180), with the online softmax of FlashAttention (arXiv 2205.14135).
    """
    _paged_attention(
        q, layer_cache, block_tables, context_lens, query_start, out, scale, block_size, sliding_window, softcap, sinks,
        plan,
    ).run()  # fmt: skip
    return out


def rope_attention(
    qkv: Tensor,
    q_out: Tensor,
    layer_cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    out: Tensor,
    scale: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    block_size: int = 16,
    interleaved: bool = False,
    norm_offset: float = 0.0,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    plan: cuda.AttentionPlan | None = None,
) -> Tensor:
    """`rope_write_kv`, then `paged_attention` of `q_out`, with their arguments; returns `out`.

    On CUDA one launch, with the same bits in `out` and in the cache, for few sequences of one token under a plan for
    such; then the slots must be those of the tokens' positions in the block tables, and `q_out` is left alone. All but
    `qkv` is read from before the stream's previous kernel has ended, keys and values of earlier tokens, too: they must
    be older than it.
    """
    write = _rope_write_kv(
        qkv, q_out, layer_cache, slots, positions, cos_sin, q_norm, k_norm, eps, block_size, interleaved, norm_offset
    )
    attention = _paged_attention(
        q_out, layer_cache, block_tables, context_lens, query_start, out, scale, block_size, sliding_window, softcap,
        sinks, plan,
    )  # fmt: skip
    if plan is not None and plan.steps_alone and len(qkv) == len(context_lens):
        device = _check_devices(write.tensors | attention.tensors)
        if cuda.decode_step(device, write.arguments, attention.arguments, plan.arrivals()):
            return out
    write.run()
    attention.run()
    return out


def _paged_attention(
    q: Tensor,
    layer_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    out: Tensor,
    scale: float,
    block_size: int,
    sliding_window: int,
    softcap: float,
    sinks: Tensor | None,
    plan: cuda.AttentionPlan | None,
) -> _Call:
    dtype = _float_type("q", q)
    if q.dim() != 3:
        raise ValueError(f"q must have shape [tokens, heads, head_dim], not {list(q.shape)}")
    tokens, heads, head_dim = q.shape
    kv_heads = layer_cache.shape[-2]
    if heads % kv_heads:
        raise ValueError(f"q must have a multiple of the cache's {kv_heads} heads, not {heads}")
    _check("q", q, q.dtype, (tokens, heads, head_dim))
    _check("out", out, q.dtype, (tokens, heads, head_dim))
    _check_heads("q", q)
    _check_heads("out", out)
    cache = _cache_layout(layer_cache, q.dtype, kv_heads, head_dim, block_size)
    _check("context_lens", context_lens, torch.int32, (None,))
    sequences = context_lens.shape[0]
    _check("block_tables", block_tables, torch.int32, (sequences, None))
    _check("query_start", query_start, torch.int32, (sequences + 1,))
    if sinks is not None:
        _check("sinks", sinks, torch.float32, (heads,))
    if sliding_window < 0:
        raise ValueError(f"sliding_window must be 0 (none) or positive, not {sliding_window}")
    if checks.wanted(q):
        checks.reads(layer_cache, block_size, block_tables, context_lens, query_start, tokens, sliding_window)
    tensors = {
        "q": q, "layer_cache": layer_cache, "block_tables": block_tables, "context_lens": context_lens,
        "query_start": query_start, "out": out, "sinks": sinks,
    }  # fmt: skip
    lengths: tuple[int | bool, ...] = (context_lens.data_ptr(), query_start.data_ptr(), sequences)
    if q.is_cuda:
        if plan is None:
            _check_devices(tensors)
            plan = cuda.AttentionPlan.for_call(q, kv_heads, block_tables, block_size, sliding_window)
            plan.update(context_lens, query_start)
        lengths = plan.arguments(sequences, heads, kv_heads, head_dim, sliding_window)
    return _Call(
        "paged_attention", tensors,
        (dtype, q.data_ptr(), q.stride(0), out.data_ptr(), out.stride(0), heads, kv_heads, head_dim, *cache,
        block_tables.data_ptr(), block_tables.stride(0), *lengths, scale, sliding_window, softcap, _address(sinks)),
    )  # fmt: skip


def copy_blocks(kv_cache: Tensor, pairs: Tensor) -> None:
    """Copies whole blocks, all layers: `pairs[n, 2]` int64 (source, target).

    Copies run at the same time: no target may appear twice or as a source.
    """
    _check_cache_type("kv_cache", kv_cache.dtype)
    _check("kv_cache", kv_cache, kv_cache.dtype, (None, None, 2, None, None))
    if not kv_cache.is_contiguous():
        raise ValueError("kv_cache must be the whole contiguous cache, not a layer of it")
    _check("pairs", pairs, torch.int64, (None, 2))
    if not pairs.is_contiguous():
        raise ValueError(f"pairs must be contiguous; its strides are {pairs.stride()}")
    if checks.wanted(pairs):
        checks.in_range("pairs", pairs, 0, kv_cache.shape[0], "block ids")
    _run(
        "copy_blocks", {"kv_cache": kv_cache, "pairs": pairs},
        kv_cache.data_ptr(), kv_cache.stride(0) * kv_cache.itemsize, pairs.data_ptr(), pairs.shape[0],
    )  # fmt: skip


def swap_blocks(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    """Copies whole blocks, all layers, from one cache to another, of which one may be on the CPU, in pinned memory.

    `pairs[n, 2]` int64 on the CPU: (block of `source`, block of `target`). With a cache on a GPU this only starts the
    copies, on the current stream: one a block, by the copy engines.
    """
    _check_cache_type("source", source.dtype)
    _check("source", source, source.dtype, (None, None, 2, None, None))
    _check("target", target, source.dtype, (None, *source.shape[1:]))
    for name, cache in (("source", source), ("target", target)):
        if not cache.is_contiguous():
            raise ValueError(f"{name} must be the whole contiguous cache, not a layer of it")
    _check("pairs", pairs, torch.int64, (None, 2))
    if not pairs.is_cpu:
        raise ValueError(f"pairs is on {pairs.device}, but must be on the CPU, which starts the copies")
    if checks.wanted(pairs):
        checks.in_range("pairs", pairs[:, 0], 0, len(source), "block ids of source")
        checks.in_range("pairs", pairs[:, 1], 0, len(target), "block ids of target")
    if source.is_cpu and target.is_cpu:
        for old, new in pairs.tolist():  # one after the other: gathering them first would touch all memory twice more
            target[new].copy_(source[old])
        return
    cuda.run(
        "swap_blocks", target.device if source.is_cpu else source.device,
        source.data_ptr(), target.data_ptr(), source.stride(0) * source.itemsize, pairs.contiguous().data_ptr(),
        pairs.shape[0],
    )  # fmt: skip


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    residual: Tensor | None = None,
    norm: RmsNorm | None = None,
    normed: Tensor | None = None,
    ahead: Ahead | None = None,
    uniform: bool = False,
) -> Tensor:
    """`x[T, K] @ weight[N, K].T`, plus `bias[N]`, plus `residual[T, N]` (which may be `out`), summed in float32.

    Weights are taken in checkpoint order. On CUDA, with up to `cuda.LINEAR_ROWS` rows, they are read from before the
    stream's previous kernel has ended: they must be older than it; `uniform` products (Hopper only) do so with
    any number of rows, and a row's bits depend neither on the others nor on their number.
    With `norm`, x is `rms_norm(x, norm)`, bit for bit; on CUDA, with few rows, in the same launch. `normed[T, K]` is
    where those rows go if they have to be stored.
    `ahead`: a hint, what the next product of the stream is going to read.
    """
    dtype = _float_type("x", x)
    rows, depth = _rows("x", x)
    _check("weight", weight, x.dtype, (None, depth))
    columns = weight.shape[0]
    if bias is not None:
        _check("bias", bias, x.dtype, (columns,))
    if residual is not None:
        _check("residual", residual, x.dtype, (rows, columns))
    _check_norm(norm, x)
    out = _output(out, x, (rows, columns))
    tensors = {"x": x, "weight": weight, "bias": bias, "residual": residual, "out": out}
    if x.is_cuda:
        _check_devices(tensors)
        if norm is not None:
            if not uniform and cuda.launch_linear(x, weight, bias, residual, out, norm=norm, ahead=ahead):
                return out
            x = _normed(x, norm, normed)
        if uniform:
            cuda.linear_uniform(x, weight, bias, residual, out)
        else:
            cuda.linear(x, weight, bias, residual, out, ahead)
        return out
    if norm is not None:
        x = _normed(x, norm, normed)
    _run(
        "linear", tensors,
        dtype, x.data_ptr(), x.stride(0), weight.data_ptr(), weight.stride(0), _address(bias), _address(residual),
        0 if residual is None else residual.stride(0), out.data_ptr(), out.stride(0), rows, columns, depth,
    )  # fmt: skip
    return out


def gated_linear(
    x: Tensor,
    weight: Tensor,
    kind: Gate,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    scratch: Tensor | None = None,
    norm: RmsNorm | None = None,
    normed: Tensor | None = None,
    ahead: Ahead | None = None,
    uniform: bool = False,
) -> Tensor:
    """`act_and_mul(linear(x, weight, bias), kind)`, `[T, I]`, for `weight[2I, K]` whose first half is the gate.

    On CUDA one launch where `linear` is ours, with the same roundings, and not `uniform`. `scratch[T, 2I]` is where the
    product goes if it has to be stored. `norm`, `normed` and `ahead` as in `linear`.
    """
    _float_type("x", x)
    rows, depth = _rows("x", x)
    _check("weight", weight, x.dtype, (None, depth))
    columns = weight.shape[0]
    if columns % 2:
        raise ValueError(f"weight must have an even number of rows, not {columns}")
    if bias is not None:
        _check("bias", bias, x.dtype, (columns,))
    _check_norm(norm, x)
    out = _output(out, x, (rows, columns // 2))
    activation = _kind(kind)
    tensors = {"x": x, "weight": weight, "bias": bias, "out": out}
    ours = _check_devices(tensors).type == "cuda" and not uniform
    if ours and cuda.launch_linear(x, weight, bias, None, out, activation, norm, ahead):
        return out
    if norm is not None:
        x = _normed(x, norm, normed)
        if ours and cuda.launch_linear(x, weight, bias, None, out, activation, ahead=ahead):
            return out
    return act_and_mul(linear(x, weight, bias, out=scratch, uniform=uniform), kind, out=out)


def _check_norm(norm: RmsNorm | None, x: Tensor) -> None:
    if norm is not None:
        _check("norm.weight", norm.weight, x.dtype, (x.shape[1],))
        _check_devices({"x": x, "norm.weight": norm.weight})


def _normed(x: Tensor, norm: RmsNorm, out: Tensor | None) -> Tensor:
    return rms_norm(x, norm.weight, norm.eps, out=out, offset=norm.offset)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
    residual: Tensor | None = None,
    offset: float = 0.0,
) -> Tensor:
    """RMS norm of the rows of `x[T, H]` (arXiv 1910.07467), times `offset + weight[H]`.

    With `residual[T, H]`: residual += x in place, and the sum is what is normalised. `out` may be `x`.
    """
    dtype = _float_type("x", x)
    rows, width = _rows("x", x)
    _check("weight", weight, x.dtype, (width,))
    if residual is not None:
        _check("residual", residual, x.dtype, (rows, width))
    out = _output(out, x, (rows, width))
    _run(
        "rms_norm", {"x": x, "weight": weight, "residual": residual, "out": out},
        dtype, x.data_ptr(), x.stride(0), _address(residual), 0 if residual is None else residual.stride(0),
        weight.data_ptr(), out.data_ptr(), out.stride(0), rows, width, eps, offset,
    )  # fmt: skip
    return out


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    out: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Layer norm of the rows of `x[T, H]`, times `weight[H]`, plus `bias[H]`; `residual` and `out` as in `rms_norm`."""
    dtype = _float_type("x", x)
    rows, width = _rows("x", x)
    _check("weight", weight, x.dtype, (width,))
    if bias is not None:
        _check("bias", bias, x.dtype, (width,))
    if residual is not None:
        _check("residual", residual, x.dtype, (rows, width))
    out = _output(out, x, (rows, width))
    _run(
        "layer_norm", {"x": x, "weight": weight, "bias": bias, "residual": residual, "out": out},
        dtype, x.data_ptr(), x.stride(0), _address(residual), 0 if residual is None else residual.stride(0),
        weight.data_ptr(), _address(bias), out.data_ptr(), out.stride(0), rows, width, eps,
    )  # fmt: skip
    return out


def act_and_mul(x: Tensor, kind: Gate, out: Tensor | None = None) -> Tensor:
    """`x[T, 2I]`: the activation of the first half (the gate) times the second half, `[T, I]`."""
    dtype = _float_type("x", x)
    rows, width = _rows("x", x)
    if width % 2:
        raise ValueError(f"x must have an even number of columns, not {width}")
    out = _output(out, x, (rows, width // 2))
    _run(
        "activation", {"x": x, "out": out},
        dtype, _kind(kind), True, x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0), rows, width // 2,
    )  # fmt: skip
    return out


def act(x: Tensor, kind: Activation, out: Tensor | None = None) -> Tensor:
    """The activation of `x[T, I]`; `out` may be `x`."""
    dtype = _float_type("x", x)
    rows, width = _rows("x", x)
    out = _output(out, x, (rows, width))
    _run(
        "activation", {"x": x, "out": out},
        dtype, _kind(kind), False, x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0), rows, width,
    )  # fmt: skip
    return out


def _kind(kind: str) -> int:
    code = ACTIVATIONS.get(kind)
    if code is None:
        raise ValueError(f"kind must be one of {', '.join(ACTIVATIONS)}, not {kind!r}")
    return code


def sample(
    logits: Tensor,
    seeds: Tensor,
    indices: Tensor,
    positions: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """One token for each row of `logits[B, V]` (penalties and biases applied): int64 `[B]`, in `out` if it is given.

    All other arguments have shape `[B]`: `seeds` int64; sequence `indices`, absolute `positions` and `top_k` int32;
    `temperature`, `top_p` and `min_p` float32. The token is argmax(logit / temperature + noise) over the tokens that
    pass the filters, the lowest id among equals; the noise is a pure function of (seed, index, position, token id):
    Gumbel values from Philox4x32-10 (Salmon et al., SC 2011) with the seed as key and (id // 4, position, index, 0) as
    counter, word id % 4, u = (word + 1/2) / 2^32. Temperature 0 takes the largest logit.

    Filters act on scaled logits, in this order, on sets: top-k (0: off) keeps what is at least the k-th largest, ties
    included; top-p (1: off) keeps, of those, what is at least as large as the token at which the mass, summed from the
    top, reaches `top_p` of the total, ties included; min-p (0: off) keeps what has at least `min_p` times the largest
    probability. Every instruction-set level chooses the same token. A row of -inf everywhere gives 0. Logits in 16 bits
    give what their float32 values give.
    """
    dtype = _float_type("logits", logits)
    rows, vocab = _rows("logits", logits)
    if vocab == 0:
        raise ValueError("logits must have at least one column")
    shape = (rows,)
    _check("seeds", seeds, torch.int64, shape)
    _check("indices", indices, torch.int32, shape)
    _check("positions", positions, torch.int32, shape)
    _check("temperature", temperature, torch.float32, shape)
    _check("top_k", top_k, torch.int32, shape)
    _check("top_p", top_p, torch.float32, shape)
    _check("min_p", min_p, torch.float32, shape)
    if logits.is_cpu:
        logits = logits.float()
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    _check("out", tokens, torch.int64, shape)
    tensors = {
        "logits": logits, "seeds": seeds, "indices": indices, "positions": positions, "temperature": temperature,
        "top_k": top_k, "top_p": top_p, "min_p": min_p, "out": tokens,
    }  # fmt: skip
    _run(
        "sample", tensors,
        *(() if logits.is_cpu else (dtype,)), logits.data_ptr(), logits.stride(0), rows, vocab, seeds.data_ptr(),
        indices.data_ptr(), positions.data_ptr(), temperature.data_ptr(), top_k.data_ptr(), top_p.data_ptr(),
        min_p.data_ptr(), tokens.data_ptr(),
    )  # fmt: skip
    return tokens


def logprobs(logits: Tensor, tokens: Tensor, top_n: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Natural-log probabilities under softmax(`logits[B, V]`); logits in 16 bits give what their float32 values give.

    Returns those of `tokens[B]` (int64) as float32 `[B]`, then the ids (int64) and values (float32) of the `top_n` most
    probable tokens, both `[B, top_n]`, largest first, the lowest id first among equals.
    """
    dtype = _float_type("logits", logits)
    rows, vocab = _rows("logits", logits)
    _check("tokens", tokens, torch.int64, (rows,))
    if not 0 <= top_n <= vocab:
        raise ValueError(f"top_n must be between 0 and the vocabulary's {vocab}, not {top_n}")
    if checks.wanted(tokens):
        checks.in_range("tokens", tokens, 0, vocab, "tokens")
    if logits.is_cpu:
        logits = logits.float()
    device = logits.device
    chosen = torch.empty(rows, device=device)
    ids = torch.empty((rows, top_n), dtype=torch.int64, device=device)
    values = torch.empty((rows, top_n), device=device)
    _run(
        "logprobs", {"logits": logits, "tokens": tokens},
        *(() if logits.is_cpu else (dtype,)), logits.data_ptr(), logits.stride(0), rows, vocab, tokens.data_ptr(),
        top_n, chosen.data_ptr(), ids.data_ptr(), values.data_ptr(),
    )  # fmt: skip
    return chosen, ids, values


def set_num_threads(threads: int) -> None:
    """Threads of the CPU kernels; the default is the number of cores this process may run on."""
    _cpu.set_num_threads(threads)


def cpu_level() -> str:
    """The instruction set that the CPU kernels use here; `OCTAVO_CPU_LEVEL` takes a lower one than the best."""
    return str(_cpu.level())


def num_threads() -> int:
    return int(_cpu.num_threads())
