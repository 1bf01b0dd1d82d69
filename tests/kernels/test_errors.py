"""Wrong arguments raise before anything is read or written, and the message names the argument."""

import pytest
import torch

from octavo_kernels import ops

I32, I64 = torch.int32, torch.int64


def attention(**changes):
    arguments = {
        "q": torch.zeros(2, 4, 32),
        "layer_cache": ops.empty_cache(3, 1, 2, 16, 32, torch.float32)[:, 0],
        "block_tables": torch.zeros(1, 3, dtype=I32),
        "context_lens": torch.ones(1, dtype=I32),
        "query_start": torch.tensor([0, 2], dtype=I32),
        "out": torch.zeros(2, 4, 32),
        "scale": 1.0,
    }
    ops.paged_attention(**{**arguments, **changes})


def rope(**changes):
    arguments = {
        "qkv": torch.zeros(2, 8 * 32),
        "q_out": torch.zeros(2, 4, 32),
        "layer_cache": ops.empty_cache(3, 1, 2, 16, 32, torch.float32)[:, 0],
        "slots": torch.zeros(2, dtype=I64),
        "positions": torch.zeros(2, dtype=I64),
        "cos_sin": torch.zeros(8, 32),
    }
    ops.rope_write_kv(**{**arguments, **changes})


def linear(**changes):
    ops.linear(**{"x": torch.zeros(2, 8), "weight": torch.zeros(3, 8), **changes})


def norm(**changes):
    ops.rms_norm(**{"x": torch.zeros(2, 8), "weight": torch.zeros(8), **changes})


def sample(**changes):
    arguments = {"logits": torch.zeros(2, 9), "seeds": torch.zeros(2, dtype=I64)}
    arguments |= {name: torch.zeros(2, dtype=I32) for name in ("indices", "positions", "top_k")}
    arguments |= {name: torch.zeros(2) for name in ("temperature", "top_p", "min_p")}
    ops.sample(**{**arguments, **changes})


CASES = [
    (attention, "q", torch.zeros(2, 4, 32, dtype=torch.float64), TypeError),
    (attention, "q", torch.zeros(2, 128), ValueError),
    (attention, "q", torch.zeros(2, 3, 32), ValueError),
    (attention, "q", torch.zeros(2, 32, 4).transpose(1, 2), ValueError),
    (attention, "q", torch.zeros(4, 2, 32).transpose(0, 1), ValueError),
    (attention, "out", torch.zeros(2, 4, 32, dtype=torch.bfloat16), TypeError),
    (attention, "out", torch.zeros(3, 4, 32), ValueError),
    (attention, "layer_cache", ops.empty_cache(3, 1, 2, 16, 32, torch.float16)[:, 0], TypeError),
    (attention, "layer_cache", ops.empty_cache(3, 1, 2, 32, 32, torch.float32)[:, 0], ValueError),
    (attention, "layer_cache", torch.zeros(3, 2, 2, 16 * 32, dtype=torch.int8), ValueError),  # no room for scales
    (attention, "block_tables", torch.zeros(1, 3, dtype=I64), TypeError),
    (attention, "block_tables", torch.zeros(2, 3, dtype=I32), ValueError),
    (attention, "context_lens", torch.ones(1), TypeError),
    (attention, "query_start", torch.zeros(1, dtype=I32), ValueError),
    (attention, "block_size", 8, ValueError),
    (attention, "sliding_window", -1, ValueError),
    (attention, "sinks", torch.zeros(3), ValueError),
    (attention, "q", torch.zeros(2, 4, 32, device="meta"), ValueError),
    (rope, "qkv", torch.zeros(2, 7 * 32), ValueError),
    (rope, "slots", torch.zeros(2, dtype=I32), TypeError),
    (rope, "slots", torch.zeros(4, dtype=I64)[::2], ValueError),
    (rope, "positions", torch.zeros(3, dtype=I64), ValueError),
    (rope, "cos_sin", torch.zeros(8, 32, dtype=torch.bfloat16), TypeError),
    (rope, "cos_sin", torch.zeros(8, 34), ValueError),
    (rope, "cos_sin", torch.zeros(8, 7), ValueError),
    (rope, "q_norm", torch.zeros(31), ValueError),
    (linear, "x", torch.zeros(2, 8, dtype=I64), TypeError),
    (linear, "x", torch.zeros(8), ValueError),
    (linear, "weight", torch.zeros(3, 9), ValueError),
    (linear, "weight", torch.zeros(8, 3).T, ValueError),
    (linear, "bias", torch.zeros(4), ValueError),
    (linear, "residual", torch.zeros(2, 4), ValueError),
    (linear, "out", torch.zeros(2, 3, dtype=torch.float16), TypeError),
    (norm, "weight", torch.zeros(9), ValueError),
    (norm, "residual", torch.zeros(2, 9), ValueError),
    (sample, "logits", torch.zeros(2, 9, dtype=torch.float64), TypeError),
    (sample, "logits", torch.zeros(2, 0), ValueError),
    (sample, "seeds", torch.zeros(2, dtype=I32), TypeError),
    (sample, "top_p", torch.zeros(3), ValueError),
]


@pytest.mark.parametrize(("call", "name", "value", "error"), CASES)
def test_wrong_argument(call, name, value, error):
    call()
    with pytest.raises(error, match=rf"^{name} "):
        call(**{name: value})


def test_the_rest():
    with pytest.raises(ValueError, match=r"^kind must be one of silu"):
        ops.act(torch.zeros(1, 2), "swish")
    with pytest.raises(ValueError, match=r"^x must have an even"):
        ops.act_and_mul(torch.zeros(1, 3), "silu")
    with pytest.raises(ValueError, match=r"^head_dim must be"):
        ops.empty_cache(1, 1, 1, 16, 12, torch.float32)
    with pytest.raises(TypeError, match=r"^dtype must be"):
        ops.empty_cache(1, 1, 1, 16, 16, torch.uint8)
    with pytest.raises(TypeError, match="take no KV cache in 8 bits yet: leave kv_dtype at auto"):
        ops.empty_cache(1, 1, 1, 16, 64, torch.int8, "cuda")
    with pytest.raises(ValueError, match=r"^kv_cache must be the whole"):
        ops.copy_blocks(torch.zeros(2, 2, 2, 1, 16)[:, :1], torch.zeros(1, 2, dtype=I64))
    with pytest.raises(ValueError, match=r"^top_n must be"):
        ops.logprobs(torch.zeros(1, 3), torch.zeros(1, dtype=I64), 4)
