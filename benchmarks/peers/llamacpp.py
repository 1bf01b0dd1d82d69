"""llama.cpp with flash attention. usage: llamacpp.py MODEL_DIR THREADS [q4_0|q4_k_m|q8_0]: weights in bf16 or quantised

Needs the packages `llama-cpp-python` and `gguf`. The safetensors are rewritten as GGUF tensor by tensor (weights are
random, so the rotary permutation of llama's converter makes no difference to speed and is left out). Prompts go in as
one ragged batch up to 2048 tokens, then one token a running sequence and step; greedy.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import torch
from safetensors import safe_open

from octavo_worker.bench.workloads import Work
from peers.base import serve, timed

BATCH = 2048
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
ENDS = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
"""Names of a layer's tensors that are no weights."""
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35"}
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def gguf_name(name: str, architecture: str) -> str:
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+?)(\.weight)?", name)
    if layer is None:
        return NAMES[name]
    if architecture == "qwen35" and layer[2] == "post_attention_layernorm":
        return f"blk.{layer[1]}.post_attention_norm.weight"
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.weight" if layer[3] else f"blk.{layer[1]}.{ENDS[layer[2]]}"


def add_states(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Fields of models with recurrent layers."""
    if config["model_type"] == "lfm2":
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    elif config["model_type"] == "qwen3_5_text":
        values = config["linear_num_value_heads"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(values)
        writer.add_ssm_inner_size(values * config["linear_value_head_dim"])
        writer.add_full_attention_interval(1 + config["layer_types"].index("full_attention"))
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def width_of_mlp(config: dict[str, Any]) -> int:
    """LFM2 states that of an MLP without a gate."""
    if not config.get("block_auto_adjust_ff_dim"):
        return int(config["intermediate_size"])
    step = config["block_multiple_of"]
    return int(-(-int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3)) // step) * step)


def kv_heads(config: dict[str, Any]) -> int | list[int]:
    """A number a layer, where short convolutions have none."""
    heads = config["num_key_value_heads"]
    if config["model_type"] != "lfm2":
        return int(heads)
    return [heads if kind == "full_attention" else 0 for kind in config["layer_types"]]


class Stacks:
    """Matrices of experts, a file a matrix, gathered into one tensor a layer and kind."""

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._found: dict[tuple[str, str], dict[int, torch.Tensor]] = {}

    def complete(self, layer: str, expert: int, kind: str, matrix: torch.Tensor) -> torch.Tensor | None:
        """All of them once the last one is there."""
        found = self._found.setdefault((layer, kind), {})
        found[expert] = matrix
        if len(found) < self._experts:
            return None
        del self._found[layer, kind]
        return torch.stack([found[number] for number in range(self._experts)])


def convert(folder: Path) -> Path:
    target = folder / "model.gguf"
    if target.exists():
        return target
    config = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters") or config
    architecture = ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(width_of_mlp(config))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(kv_heads(config))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    add_states(writer, config)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    experts = config.get("num_experts", config.get("num_local_experts", 0))  # by version of transformers
    stacks = Stacks(experts)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size", config["intermediate_size"]))
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a dict)
                add(writer, stacks, name, tensors.get_tensor(name), architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def add(writer: gguf.GGUFWriter, stacks: Stacks, name: str, tensor: torch.Tensor, architecture: str) -> None:
    if expert := EXPERT.fullmatch(name):
        layer, number, kind = expert.groups()
        tensor = stacks.complete(layer, int(number), kind, tensor)
        if tensor is None:
            return
        target = f"blk.{layer}.ffn_{kind}_exps.weight"
    else:
        target = gguf_name(name, architecture)
    if name.endswith("A_log"):
        tensor = -tensor.float().exp()
    if tensor.ndim == 3:  # a convolution, with one input a channel
        tensor = tensor[:, 0]
    if tensor.ndim == 1 or target.endswith(("ffn_gate_inp.weight", "conv.weight", "conv1d.weight")):
        writer.add_tensor(target, tensor.float().numpy())
    else:
        raw = tensor.contiguous().view(torch.uint8).numpy()
        writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)


def quantise(path: Path, kind: str) -> Path:
    """By llama.cpp's own tool, the matrices that it chooses."""
    target = path.with_stem(f"{path.stem}-{kind}")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    if not target.exists() and llama_cpp.llama_model_quantize(str(path).encode(), str(target).encode(), options) != 0:
        raise SystemExit(f"{path} could not be quantised to {kind}")
    return target


def load(path: Path, threads: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = 32 * 512
    options.n_batch = options.n_ubatch = BATCH
    options.n_seq_max = 32
    options.n_threads = options.n_threads_batch = threads
    options.flash_attn_type = 1
    options.kv_unified = True
    return model, llama_cpp.llama_init_from_model(model, options)


source = convert(Path(sys.argv[1]))
model, context = load(quantise(source, sys.argv[3]) if len(sys.argv) > 3 else source, int(sys.argv[2]))
vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
batch = llama_cpp.llama_batch_init(BATCH, 0, 32)


def decode(rows: list[tuple[int, int, int, bool]]) -> None:
    """Rows of (token, position, sequence, wants logits), at most BATCH."""
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
    if llama_cpp.llama_decode(context, batch) != 0:
        raise SystemExit("llama_decode failed")


def greedy(row: int) -> int:
    pointer = llama_cpp.llama_get_logits_ith(context, row)
    return int(np.ctypeslib.as_array(pointer, shape=(vocab_size,)).argmax())


def generate(work: list[Work]) -> int:
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
    queue = [
        (token, position, sequence, position == len(w.prompt) - 1)
        for sequence, w in enumerate(work)
        for position, token in enumerate(w.prompt)
    ]
    last: dict[int, int] = {}
    for start in range(0, len(queue), BATCH):
        rows = queue[start : start + BATCH]
        decode(rows)
        last |= {row[2]: greedy(i) for i, row in enumerate(rows) if row[3]}
    counts = dict.fromkeys(last, 1)
    while live := [s for s in last if counts[s] < work[s].max_tokens]:
        decode([(last[s], len(work[s].prompt) + counts[s] - 1, s, True) for s in live])
        for i, s in enumerate(live):
            last[s] = greedy(i)
            counts[s] += 1
    return sum(counts.values())


serve(timed(generate), vocab_size)
