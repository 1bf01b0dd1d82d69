"""Wrong arguments raise before anything is read or written, and the message names the argument, on either device."""

from functools import partial

import pytest
import torch
from gpus import devices
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.product import Product

BF16, F16, F32, I32, I64 = (
    torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64,
)  # fmt: skip
data, ints, longs = (partial(torch.zeros, dtype=dtype) for dtype in (BF16, I32, I64))


def cache(block_size=16, dtype=BF16):
    return ops.empty_cache(3, 1, 2, block_size, 32, dtype).zero_()[:, 0]


def linear(**operands):
    return ops.linear(Product(**operands))


def gated_linear(kind, **operands):
    return ops.gated_linear(Product(**operands), kind)


# Operations with right arguments, of which a test spoils one.
RIGHT = {
    ops.paged_attention: {
        "q": data(2, 4, 32), "layer_cache": cache(), "block_tables": ints(1, 3), "context_lens": ints(1) + 2,
        "query_start": torch.tensor([0, 2], dtype=I32), "out": data(2, 4, 32), "scale": 1.0, "sinks": torch.zeros(4),
    },
    ops.rope_write_kv: {
        "qkv": data(2, 8 * 32), "q_out": data(2, 4, 32), "layer_cache": cache(), "slots": longs(2),
        "positions": longs(2), "cos_sin": torch.zeros(8, 32), "q_norm": data(32), "k_norm": data(32),
    },
    ops.write_kv: {"k": data(2, 2, 32), "v": data(2, 2, 32), "layer_cache": cache(), "slots": longs(2)},
    ops.copy_blocks: {"kv_cache": data(2, 2, 2, 1, 512), "pairs": longs(1, 2)},
    linear: {
        "x": data(2, 8), "weight": data(3, 8), "bias": data(3), "residual": data(2, 3), "out": data(2, 3),
    },
    gated_linear: {"x": data(2, 8), "weight": data(16, 8), "bias": data(16), "kind": "silu", "out": data(2, 8)},
    ops.rms_norm: {"x": data(2, 8), "weight": data(8), "residual": data(2, 8), "out": data(2, 8)},
    ops.layer_norm: {
        "x": data(2, 8), "weight": data(8), "bias": data(8), "eps": 1e-5, "residual": data(2, 8), "out": data(2, 8),
    },
    ops.act_and_mul: {"x": data(2, 16), "kind": "silu", "out": data(2, 8)},
    ops.act: {"x": data(2, 16), "kind": "silu", "out": data(2, 16)},
    ops.sample: {
        "logits": data(2, 9), "samples": ops.pack_samples(2), "out": longs(2),
    },
    ops.logprobs: {"logits": data(2, 9), "tokens": longs(2)},
}  # fmt: skip
WRONG = [
    (ops.paged_attention, "q", data(2, 4, 32).double(), TypeError),
    (ops.paged_attention, "q", data(2, 128), ValueError),
    (ops.paged_attention, "q", data(2, 3, 32), ValueError),
    (ops.paged_attention, "q", data(2, 32, 4).transpose(1, 2), ValueError),
    (ops.paged_attention, "q", data(4, 2, 32).transpose(0, 1), ValueError),
    (ops.paged_attention, "out", data(2, 4, 32).half(), TypeError),
    (ops.paged_attention, "out", data(3, 4, 32), ValueError),
    (ops.paged_attention, "layer_cache", cache(dtype=F16), TypeError),
    (ops.paged_attention, "layer_cache", cache(32), ValueError),
    (ops.paged_attention, "layer_cache", torch.zeros(3, 2, 2, 16 * 32, dtype=torch.int8), ValueError),  # no scales
    (ops.paged_attention, "block_tables", longs(1, 3), TypeError),
    (ops.paged_attention, "block_tables", ints(2, 3), ValueError),
    (ops.paged_attention, "context_lens", torch.ones(1), TypeError),
    (ops.paged_attention, "query_start", ints(1), ValueError),
    (ops.paged_attention, "block_size", 12, ValueError),
    (ops.paged_attention, "sliding_window", -1, ValueError),
    (ops.paged_attention, "sinks", torch.zeros(3), ValueError),
    (ops.paged_attention, "q", data(2, 4, 32, device="meta"), ValueError),
    (ops.rope_write_kv, "qkv", data(2, 7 * 32), ValueError),
    (ops.rope_write_kv, "slots", ints(2), TypeError),
    (ops.rope_write_kv, "slots", longs(4)[::2], ValueError),
    (ops.rope_write_kv, "positions", longs(3), ValueError),
    (ops.rope_write_kv, "cos_sin", data(8, 32), TypeError),
    (ops.rope_write_kv, "cos_sin", torch.zeros(8, 34), ValueError),
    (ops.rope_write_kv, "cos_sin", torch.zeros(8, 7), ValueError),
    (ops.rope_write_kv, "q_norm", data(31), ValueError),
    (ops.write_kv, "v", data(2, 2, 31), ValueError),
    (ops.write_kv, "slots", ints(2), TypeError),
    (ops.copy_blocks, "kv_cache", data(2, 2, 2, 1, 512)[:, :1], ValueError),
    (ops.copy_blocks, "pairs", ints(1, 2), TypeError),
    (ops.copy_blocks, "pairs", longs(2, 2).T, ValueError),
    (linear, "x", longs(2, 8), TypeError),
    (linear, "x", data(8), ValueError),
    (linear, "weight", data(3, 9), ValueError),
    (linear, "weight", data(8, 3).T, ValueError),
    (linear, "bias", data(4), ValueError),
    (linear, "residual", data(2, 4), ValueError),
    (linear, "counter", torch.zeros(1), TypeError),
    (gated_linear, "counter", torch.zeros(2, dtype=torch.int32), ValueError),
    (linear, "out", data(2, 3).half(), TypeError),
    (gated_linear, "residual", data(2, 8), ValueError),
    (gated_linear, "weight", data(15, 8), ValueError),
    (gated_linear, "kind", "relu6", ValueError),
    (ops.rms_norm, "weight", data(9), ValueError),
    (ops.rms_norm, "residual", data(2, 9), ValueError),
    (ops.layer_norm, "bias", data(8).half(), TypeError),
    (ops.act_and_mul, "x", data(2, 3), ValueError),
    (ops.act, "kind", "swish", ValueError),
    (ops.sample, "logits", data(2, 9).double(), TypeError),
    (ops.sample, "logits", data(2, 0), ValueError),
    (ops.sample, "logits", data(9, 2).T, ValueError),
    (ops.sample, "samples", ops.pack_samples(2).float(), TypeError),
    (ops.sample, "samples", ops.pack_samples(3), ValueError),
    (ops.sample, "samples", ops.pack_samples(4)[::2], ValueError),
    (ops.sample, "out", ints(2), TypeError),
    (ops.logprobs, "logits", data(2, 9).double(), TypeError),
    (ops.logprobs, "tokens", longs(3), ValueError),
    (ops.logprobs, "top_n", 10, ValueError),
]


def moved(value, device):
    """To `device`, with its strides."""
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)


@pytest.fixture(params=devices())
def device(request):
    return request.param


@pytest.mark.parametrize(
    ("call", "name", "value", "error"), WRONG, ids=[f"{call.__name__}-{name}" for call, name, *_ in WRONG]
)
def test_wrong_argument(device, call, name, value, error):
    arguments = {n: moved(x, device) for n, x in RIGHT[call].items()}
    call(**arguments)
    with pytest.raises(error, match=rf"^{name} "):
        call(**{**arguments, name: moved(value, device)})


@pytest.mark.gpu
@pytest.mark.parametrize("call", RIGHT, ids=[call.__name__ for call in RIGHT])
def test_an_argument_on_another_device(call):
    arguments = {n: moved(x, "cuda") for n, x in RIGHT[call].items()}
    tensors = [n for n, x in arguments.items() if isinstance(x, Tensor)]
    for name in tensors[1:]:  # the first says where the operation runs
        with pytest.raises(ValueError, match=rf"^{name} is on cpu, but {tensors[0]} is on cuda"):
            call(**{**arguments, name: arguments[name].cpu()})


def test_caches_that_cannot_be():
    with pytest.raises(ValueError, match=r"^head_dim must be"):
        ops.empty_cache(1, 1, 1, 16, 12, F32)
    with pytest.raises(TypeError, match=r"^dtype must be"):
        ops.empty_cache(1, 1, 1, 16, 16, torch.uint8)
    with pytest.raises(ValueError, match=r"^block_size must be a power of two on CUDA"):
        ops.empty_cache(1, 1, 1, 48, 64, torch.int8, "cuda")


def test_swapping_between_caches_that_do_not_fit():
    source, pairs = data(2, 2, 2, 1, 512), longs(1, 2)
    with pytest.raises(ValueError, match=r"^target must have shape"):
        ops.swap_blocks(source, data(2, 1, 2, 1, 512), pairs)
    with pytest.raises(TypeError, match=r"^target must be"):
        ops.swap_blocks(source, source.half(), pairs)
    with pytest.raises(ValueError, match=r"^pairs is on meta"):
        ops.swap_blocks(source, source, pairs.to("meta"))
