"""A tiny gpt-oss as it is released: experts in MXFP4, stacked, with biases, gates and what they gate by turns."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from quantised_checkpoint import write
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GptOssConfig, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

VOCAB, EXPERTS = 97, 4
CLAMPED = {"swiglu_limit": 0.7} if hasattr(GptOssConfig(), "swiglu_limit") else {}
"""transformers 5.17, the oldest that is supported, clamps at 7 whatever is stated."""
CONFIG = GptOssConfig(
    vocab_size=VOCAB, hidden_size=128, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, num_local_experts=EXPERTS, num_experts_per_tok=2, sliding_window=24,
    **CLAMPED, max_position_embeddings=256, pad_token_id=None, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
"""Rows and depth of the first matrix are alike: the family says which way round it lies in 16 bits, codes lie the
other way."""
STATED = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]}


def released(folder: Path) -> PreTrainedModel:
    """A random model in the folder as gpt-oss is published, and transformers' of the values that it stands for."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG, trust_remote_code=False).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    values, drawn = model.state_dict(), torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, depth, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, depth // 32, 16), generator=drawn).to(torch.uint8)
        scales = torch.randint(122, 126, (experts, rows, depth // 32), generator=drawn).to(torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values[name].copy_(convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32))
    write(folder, tensors, json.loads((folder / "config.json").read_text()) | {"quantization_config": STATED})
    return model
