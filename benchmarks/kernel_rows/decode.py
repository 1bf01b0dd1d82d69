"""Attention of one query a sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernel_rows.measuring import READ, Row, measure, rotations, row
from kernel_rows.paged import Cache
from octavo_kernels import ops
from octavo_kernels.attention.plan import AttentionPlan, chunk_tokens

MODEL_LAYERS, POOL_BYTES = 32, 40e9  # of a pool: the layers beside the one that is read show in its time


class FlashInfer:
    """Its tensor-core decode, the peer of ours: over as many blocks in the same order, a pool for each layer, as it has
    them. It compiles itself once for each head dim, which takes about a quarter of a minute."""

    def __init__(self) -> None:
        try:
            import flashinfer
        except ImportError as error:
            raise SystemExit(
                f"--flashinfer: it cannot be imported ({error}). Install flashinfer-python, or put the folder that "
                "holds it on PYTHONPATH; without the option the other rows are measured alone."
            ) from error
        self.name = f"FlashInfer {flashinfer.__version__}"
        self._wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper

    def decode(self, cache: Cache, layers: int, q: Tensor, kv_heads: int, block: int) -> float:
        """Seconds of one layer."""
        _, heads, head_dim = q.shape
        pools = [
            torch.randn(cache.pool.shape[0], 2, block, kv_heads, head_dim, dtype=q.dtype, device="cuda")
            for _ in range(layers)
        ]
        counts = (cache.lengths + block - 1) // block
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        indices = torch.cat([t[:n] for t, n in zip(cache.tables, counts.tolist(), strict=True)])
        work = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        wrapper = self._wrapper(work, "NHD", use_tensor_cores=True)
        wrapper.plan(
            indptr, indices, (cache.lengths - 1) % block + 1, heads, kv_heads, head_dim, block,
            q_data_type=q.dtype, kv_data_type=q.dtype,
        )  # fmt: skip
        out = torch.empty_like(q)
        return measure([lambda pool=pool: wrapper.run(q, pool, out=out) for pool in pools])


def attention(
    lengths: list[int], heads: int, kv_heads: int, head_dim: int = 128, block: int = 16, layers: int = 1
) -> Callable[[int], None]:
    """One query a sequence over a cache of so many layers: what a call with a layer's number computes."""
    return _over(Cache.make(lengths, layers, kv_heads, head_dim, block), lengths, heads, kv_heads, head_dim, block)


def decode(
    name: str,
    lengths: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int = 128,
    block: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    peer: FlashInfer | None = None,
) -> Row:
    """Over a cache of `dtype`; in eight bits the floor counts the scales, and the peer is our decode over bfloat16."""
    batch = len(lengths)
    kv = sum(lengths) * ops.block_bytes(1, kv_heads, block, head_dim, dtype) // block
    layers = rotations(kv, 3)
    held = max(layers, min(MODEL_LAYERS, int(POOL_BYTES / kv)))
    cache = Cache.make(lengths, held, kv_heads, head_dim, block, dtype=dtype, filled=layers)
    call = _over(cache, lengths, heads, kv_heads, head_dim, block)
    seconds = measure([lambda i=i: call(i) for i in range(layers)])
    floor = (kv + 2 * batch * heads * head_dim * 2) / READ
    shape = f"{heads}/{kv_heads}/{head_dim} b{block} {name}"
    if dtype.itemsize == 1:
        plain = decode(name, lengths, heads, kv_heads, head_dim, block).microseconds
        return row(f"decode {str(dtype)[6:]}", shape, seconds, floor, ("octavo bfloat16", plain / 1e6))
    q = torch.randn(batch, heads, head_dim, dtype=torch.bfloat16, device="cuda")
    beside = peer and (peer.name, peer.decode(cache, layers, q, kv_heads, block))
    return row("decode", shape, seconds, floor, beside)


def _over(
    cache: Cache, lengths: list[int], heads: int, kv_heads: int, head_dim: int, block: int
) -> Callable[[int], None]:
    batch = len(lengths)
    q = torch.randn(batch, heads, head_dim, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(q)
    starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
    plan = AttentionPlan(
        sequences=batch, tokens=batch, chunks=sum(-(-n // chunk_tokens()) for n in lengths), heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, max_queries=1,
    )  # fmt: skip
    plan.update(cache.lengths, starts)

    def call(layer: int) -> None:
        ops.paged_attention(
            q, cache.pool[:, layer], cache.tables, cache.lengths, starts, out, head_dim**-0.5, block, plan=plan,
            history_ready=True,
        )  # fmt: skip

    return call


def decode_table(heads: int, kv_heads: int, peer: FlashInfer | None) -> list[Row]:
    return [
        decode("B64 L8192", [8192] * 64, heads, kv_heads, peer=peer),
        decode("B8 L32768", [32768] * 8, heads, kv_heads, peer=peer),
        decode("B32 L4096", [4096] * 32, heads, kv_heads, peer=peer),
        decode("B128 L1024", [1024] * 128, heads, kv_heads, peer=peer),
        decode("B1 L32768", [32768], heads, kv_heads, peer=peer),
    ]


def decode_others(peer: FlashInfer | None) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    ragged = torch.randint(100, 8000, (64,), generator=generator).tolist()
    return [
        decode("B64 ragged", ragged, 32, 8, peer=peer),
        decode("B1 L4096", [4096], 32, 8, peer=peer),
        decode("B32 L4096", [4096] * 32, 32, 8, block=64, peer=peer),
        decode("B32 L4096", [4096] * 32, 32, 8, head_dim=64, peer=peer),
        decode("B32 L4096", [4096] * 32, 16, 8, head_dim=256, peer=peer),
    ]
