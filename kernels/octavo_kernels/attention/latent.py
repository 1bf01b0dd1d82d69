"""Multi-head latent attention: of a token one key is kept, whose leading elements are its values.

DeepSeek-V2 (arXiv 2405.04434, section 2.1) in the absorbed form: all heads read the same row of a token, the latent and
a rotated key behind it. On CUDA rows of 576 with 512 values are the tensor cores' on Hopper, with data in 16 bits;
others are computed in float32, slowly, and not in eight bits."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import _cpu, checks, cuda
from octavo_kernels.attention.by_head import HeadProduct, by_head, is_launched, operands, prepare
from octavo_kernels.attention.plan import AttentionPlan
from octavo_kernels.attention.wide import VALUES, Plan, WidePlan
from octavo_kernels.cache.blocks import CELLS, HEAD_DIM_MULTIPLE, SCALE_BYTES, check_block_size
from octavo_kernels.call import check, check_devices, check_heads, float_type, rows_of, run
from octavo_kernels.operands import RmsNorm, norm_at, rows_at


def check_latent(width: int) -> None:
    """Raises `ValueError` for rows that no cache can have."""
    if not 0 < width <= _cpu.max_latent_dim or width % HEAD_DIM_MULTIPLE:
        raise ValueError(
            f"a row of the latent and the rotated key must be a multiple of {HEAD_DIM_MULTIPLE} up to "
            f"{_cpu.max_latent_dim} wide, not {width}"
        )


def latent_cells(width: int, values: int, block_size: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> int:
    """Elements of a block of one layer, for data of type `dtype`. In eight bits: codes of the first `values` columns,
    a float32 scale of each token, then the other columns in the type of the data."""
    if cache_dtype not in CELLS:
        return block_size * width
    return block_size * (values + SCALE_BYTES + (width - values) * dtype.itemsize)


def write_latent(
    rows: Tensor,
    q_out: Tensor,
    layer_cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    block_size: int = 16,
) -> Tensor:
    """On the CPU: rotary embedding of the last values of each query and of the key, then the key into the layer's
    cache; returns `q_out`.

    `rows[T, (heads + 1) * width]` has the queries of all heads, then the key; `q_out[T, heads, width]`. `layer_cache`
    is `[num_blocks, 1, 1, block_size * width]` of their type; or of int8 or float8_e4m3fn and `latent_cells` long: then
    the rotated values, the last ones, are kept as they are. `slots[T]` and `positions[T]` are int64; a slot of -1 skips
    the write. `cos_sin[max_pos, rotary_dim]` (float32) as in `rope_write_kv`. Raises `TypeError` or `ValueError`,
    naming the argument, for what does not fit together."""
    dtype = float_type("rows", rows)
    tokens, packed = rows_of("rows", rows)
    check("q_out", q_out, rows.dtype, (tokens, None, None))
    check_heads("q_out", q_out)
    _, heads, width = q_out.shape
    if packed != (heads + 1) * width:
        raise ValueError(f"rows must have ({heads} + 1) * {width} columns, not {packed}")
    check("slots", slots, torch.int64, (tokens,))
    check("positions", positions, torch.int64, (tokens,))
    check("cos_sin", cos_sin, torch.float32, (None, None))
    rotary_dim = cos_sin.shape[1]
    if rotary_dim % 2 or rotary_dim > width:
        raise ValueError(f"cos_sin must have an even number of columns up to {width}, not {rotary_dim}")
    cache = _layout(layer_cache, rows.dtype, width, width - rotary_dim, block_size)
    if checks.wanted(slots):
        checks.writes(layer_cache, block_size, slots)
        checks.in_range("positions", positions, 0, cos_sin.shape[0], "rows of cos_sin")
    tensors: dict[str, Tensor | None] = {
        "rows": rows, "q_out": q_out, "layer_cache": layer_cache, "slots": slots, "positions": positions,
    }  # fmt: skip
    if check_devices(tensors).type != "cpu":
        raise ValueError("rows is on a GPU; there take `keep_latent`")
    _cpu.rope_write_latent(
        dtype, rows_at(rows), rows_at(q_out), tokens, (heads, 1, width), cache, slots.data_ptr(),
        (positions.data_ptr(), *rows_at(cos_sin), rotary_dim),
    )  # fmt: skip
    return q_out


def keep_latent(
    q: Tensor,
    kept: Tensor,
    norm: RmsNorm,
    q_out: Tensor,
    layer_cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    block_size: int = 16,
    beside: HeadProduct | None = None,
) -> None:
    """On CUDA: the RMS norm of each token's latent and the rotary embedding of the key behind it, `kept[T, width]`,
    into the layer's cache; and that of the last values of its queries, `q[T, heads, rotary_dim]`, into the last columns
    of `q_out[T, heads, width]`, whose others are left alone. A product that is independent of this, `beside`, is
    computed as well, of a few rows in the same launch.

    All else is as in `write_latent`, which takes what is normed by then. Raises `TypeError` or `ValueError`, naming the
    argument, for what does not fit together."""
    dtype = float_type("kept", kept)
    tokens, width = rows_of("kept", kept)
    check("q_out", q_out, kept.dtype, (tokens, None, width))
    check_heads("q_out", q_out)
    heads = q_out.shape[1]
    check("cos_sin", cos_sin, torch.float32, (None, None))
    rotary_dim = cos_sin.shape[1]
    if rotary_dim % 2 or rotary_dim >= width:
        raise ValueError(f"cos_sin must have an even number of columns below {width}, not {rotary_dim}")
    cache = _layout(layer_cache, kept.dtype, width, width - rotary_dim, block_size)
    check("q", q, kept.dtype, (tokens, heads, rotary_dim))
    check("norm.weight", norm.weight, kept.dtype, (width - rotary_dim,))
    check("slots", slots, torch.int64, (tokens,))
    check("positions", positions, torch.int64, (tokens,))
    if checks.wanted(slots):
        checks.writes(layer_cache, block_size, slots)
        checks.in_range("positions", positions, 0, cos_sin.shape[0], "rows of cos_sin")
    device = check_devices(
        {"q": q, "kept": kept, "q_out": q_out, "layer_cache": layer_cache, "slots": slots, "positions": positions}
    )
    rows = (
        dtype, rows_at(q), q.stride(1), rows_at(kept), (0, *norm_at(norm)), rows_at(q_out), tokens, (heads, 1, width),
        cache, slots.data_ptr(), (positions.data_ptr(), *rows_at(cos_sin), rotary_dim),
    )  # fmt: skip
    if beside is None or not is_launched(beside):
        cuda.run("latent_rows", device, *rows)
        if beside is not None:
            by_head(beside)
        return
    prepare(beside)
    cuda.run("latent_queries", device, rows, operands(beside))


def read_latent(layer_cache: Tensor, blocks: Tensor, out: Tensor, values: int, block_size: int = 16) -> Tensor:
    """The rows of the blocks `blocks[n]` (int32), one after the other, as they were written, into
    `out[n * block_size, width]`. Of a cache in eight bits the first `values` columns are codes times their scale,
    rounded to the type of `out`. Rows that nothing was written to are anything.

    Raises `TypeError` or `ValueError`, naming the argument, for what does not fit together."""
    dtype = float_type("out", out)
    rows, width = rows_of("out", out)
    check("blocks", blocks, torch.int32, (rows // block_size,))
    if rows % block_size:
        raise ValueError(f"out must have {block_size} rows for each block, not {rows}")
    if not 0 < values <= width:
        raise ValueError(f"values must be 1 to {width}, not {values}")
    cache = _layout(layer_cache, out.dtype, width, values, block_size)
    if checks.wanted(blocks):
        checks.in_range("blocks", blocks, 0, layer_cache.shape[0], "block ids")
    device = check_devices({"layer_cache": layer_cache, "blocks": blocks, "out": out})
    if device.type == "cpu":
        cells = layer_cache.flatten(1).index_select(0, blocks)
        return out.copy_(_unpaged(cells, width, values, block_size, out.dtype).transpose(1, 2).flatten(0, 1))
    cuda.run("latent_read", device, dtype, rows_at(out), width, values, cache, blocks.data_ptr(), len(blocks))
    return out


def _unpaged(cells: Tensor, width: int, values: int, block_size: int, dtype: torch.dtype) -> Tensor:
    """The CPU's blocks `cells[n, elements]` of data of type `dtype`, as `[n, width, block_size]`."""
    if cells.dtype not in CELLS:
        return cells.view(-1, width, block_size)
    raw, ends = cells.view(torch.uint8), (values * block_size, (values + SCALE_BYTES) * block_size)
    codes = raw[:, : ends[0]].view(cells.dtype).reshape(-1, values, block_size).float()
    scales = raw[:, ends[0] : ends[1]].contiguous().view(torch.float32)
    exact = raw[:, ends[1] :].contiguous().view(dtype).view(-1, width - values, block_size)
    return torch.cat(((codes * scales[:, None]).to(dtype), exact), dim=1)


def latent_attention(
    q: Tensor,
    layer_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    out: Tensor,
    scale: float,
    block_size: int = 16,
    plan: Plan | None = None,
) -> Tensor:
    """Causal attention of `q[T, heads, width]` over rows that `write_latent` wrote, into `out[T, heads, values]`: a
    token's values are the first of its key. All else is as in `paged_attention`, the order of sums, too; a `plan` that
    is no `WidePlan` is one for a KV head as wide as rows are.

    Raises `TypeError` or `ValueError`, naming the argument, for what does not fit.
    """
    dtype = float_type("q", q)
    check("q", q, q.dtype, (None, None, None))
    tokens, heads, width = q.shape
    check("out", out, q.dtype, (tokens, heads, None))
    for name, tensor in (("q", q), ("out", out)):
        check_heads(name, tensor)
    values = out.shape[2]
    if not 0 < values <= width:
        raise ValueError(f"out must have 1 to {width} values a head, not {values}")
    cache = _layout(layer_cache, q.dtype, width, values, block_size)
    check("context_lens", context_lens, torch.int32, (None,))
    sequences = context_lens.shape[0]
    check("block_tables", block_tables, torch.int32, (sequences, None))
    check("query_start", query_start, torch.int32, (sequences + 1,))
    tensors: dict[str, Tensor | None] = {
        "q": q, "layer_cache": layer_cache, "block_tables": block_tables, "out": out,
    }  # fmt: skip
    if checks.wanted(q):
        checks.reads(layer_cache, block_size, block_tables, context_lens, query_start, len(q), 0)
    operands = (dtype, rows_at(q), rows_at(out), (heads, 1, width))
    memory = (cache, rows_at(block_tables), (scale, 0, 0.0, 0))
    if q.is_cuda and plan is None:
        check_devices(tensors)
        plan = AttentionPlan.for_call(q, 1, block_tables, block_size, 0)
        plan.update(context_lens, query_start)
    if plan is None:
        work: tuple[object, ...] = (context_lens.data_ptr(), query_start.data_ptr(), sequences)
        run("latent_attention", tensors, *operands, values, *memory, *work)
    elif isinstance(plan, WidePlan):
        if values != VALUES:
            raise ValueError(f"plan is one for {VALUES} values a head, not {values}")
        lists = plan.use(sequences, heads, 1, latent=True)
        run("wide_attention", tensors, *operands, True, *memory, lists)
    else:
        use = plan.use(sequences, heads, 1, width, 0, history_ready=False)
        run("latent_attention", tensors, *operands, values, *memory, *use)
    return out


def _layout(cache: Tensor, dtype: torch.dtype, width: int, values: int, block_size: int) -> tuple[int, ...]:
    """A cache as the module takes it: values lie no distance behind keys."""
    check_block_size(block_size, cache.device)
    check_latent(width)
    kind = cache.dtype if cache.dtype in CELLS else dtype
    check("layer_cache", cache, kind, (None, 1, 1, latent_cells(width, values, block_size, dtype, kind)))
    return cache.data_ptr(), CELLS.get(kind, 0), cache.stride(0), 0, cache.stride(2), block_size
