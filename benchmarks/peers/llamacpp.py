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

import gguf
import llama_cpp
import numpy as np
import torch
from safetensors import safe_open

from octavo_worker.bench.workloads import Work
from peers.base import serve

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
}
ARCHITECTURES = {"qwen3_moe": "qwen3moe"}
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def gguf_name(name: str) -> str:
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.weight" if layer else NAMES[name]


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
    writer = gguf.GGUFWriter(target, ARCHITECTURES.get(config["model_type"], config["model_type"]))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
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
                add(writer, stacks, name, tensors.get_tensor(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def add(writer: gguf.GGUFWriter, stacks: Stacks, name: str, tensor: torch.Tensor) -> None:
    if expert := EXPERT.fullmatch(name):
        layer, number, kind = expert.groups()
        tensor = stacks.complete(layer, int(number), kind, tensor)
        if tensor is None:
            return
        target = f"blk.{layer}.ffn_{kind}_exps.weight"
    else:
        target = gguf_name(name)
    if tensor.ndim == 1 or target.endswith("ffn_gate_inp.weight"):
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


def run(work: list[Work]) -> int:
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


serve(run, vocab_size)
