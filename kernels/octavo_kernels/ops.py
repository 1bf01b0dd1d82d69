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

from octavo_kernels import _cpu
from octavo_kernels.attention.by_head import HeadProduct, by_head
from octavo_kernels.attention.latent import check_latent, keep_latent, latent_attention, read_latent, write_latent
from octavo_kernels.attention.paged import paged_attention, rope_attention
from octavo_kernels.cache.blocks import (
    KV_DTYPES,
    block_bytes,
    check_block_size,
    copy_blocks,
    empty_cache,
    rope_write_kv,
    swap_blocks,
    write_kv,
)
from octavo_kernels.experts.coded import pack_experts
from octavo_kernels.experts.coded import takes as takes_experts
from octavo_kernels.experts.gpu import (
    Experts,
    Routed,
    RouterLogits,
    RouterProduct,
    SharedProduct,
    Taken,
    experts_down,
    experts_up,
    listed,
    route_rows,
)
from octavo_kernels.experts.grouped import combine, grouped_linear
from octavo_kernels.experts.route import Assignments, Routing, Score, route, sigmoid
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products.activation import ACTIVATIONS, Activation, Gate, HeadGate, act, act_and_mul, gate_heads
from octavo_kernels.products.add_norms import Addend, add_norms
from octavo_kernels.products.linear import gated_linear, linear
from octavo_kernels.products.norm import layer_norm, norm_heads, rms_norm
from octavo_kernels.products.product import Product
from octavo_kernels.products.quantised import copy_of, pack, takes_copy
from octavo_kernels.recurrent.chunks import delta_tiles, room_bytes, ssm_tiles, takes_chunks, takes_head
from octavo_kernels.recurrent.delta import delta_step
from octavo_kernels.recurrent.operands import Convolution, GatedNorm, LayerStates, Moves
from octavo_kernels.recurrent.short_conv import conv_step
from octavo_kernels.recurrent.ssm import ssm_step
from octavo_kernels.sampling.sample import logprobs, pack_samples, sample

__all__ = [
    "ACTIVATIONS",
    "KV_DTYPES",
    "Activation",
    "Addend",
    "Assignments",
    "Convolution",
    "Experts",
    "Gate",
    "GatedNorm",
    "HeadGate",
    "HeadProduct",
    "LayerStates",
    "Moves",
    "Product",
    "RmsNorm",
    "Routed",
    "RouterLogits",
    "RouterProduct",
    "Routing",
    "Score",
    "SharedProduct",
    "Taken",
    "act",
    "act_and_mul",
    "add_norms",
    "block_bytes",
    "by_head",
    "check_block_size",
    "check_latent",
    "combine",
    "conv_step",
    "copy_blocks",
    "copy_of",
    "cpu_level",
    "delta_step",
    "delta_tiles",
    "empty_cache",
    "experts_down",
    "experts_up",
    "gate_heads",
    "gated_linear",
    "grouped_linear",
    "keep_latent",
    "latent_attention",
    "layer_norm",
    "linear",
    "listed",
    "logprobs",
    "norm_heads",
    "num_threads",
    "pack",
    "pack_experts",
    "pack_samples",
    "paged_attention",
    "read_latent",
    "rms_norm",
    "room_bytes",
    "rope_attention",
    "rope_write_kv",
    "route",
    "route_rows",
    "sample",
    "set_num_threads",
    "sigmoid",
    "ssm_step",
    "ssm_tiles",
    "swap_blocks",
    "takes_chunks",
    "takes_copy",
    "takes_experts",
    "takes_head",
    "write_kv",
    "write_latent",
]


def set_num_threads(threads: int) -> None:
    """Threads of the CPU kernels; the default is the number of cores this process may run on."""
    _cpu.set_num_threads(threads)


def cpu_level() -> str:
    """The instruction set that the CPU kernels use here; `OCTAVO_CPU_LEVEL` takes a lower one than the best."""
    return str(_cpu.level())


def num_threads() -> int:
    return int(_cpu.num_threads())
