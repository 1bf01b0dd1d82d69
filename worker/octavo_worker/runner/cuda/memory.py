"""How much of a GPU's memory is left for the KV cache."""

from __future__ import annotations

import torch

from octavo_kernels.ops import KV_DTYPES, delta_tiles, room_bytes, ssm_tiles
from octavo_worker.contract.cache import group_window
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.causal_model import CausalModel
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import ModelError
from octavo_worker.model.expansion import ExpansionRoom, head_dim
from octavo_worker.model.layers.attention import Attention
from octavo_worker.model.layers.latent import LatentAttention
from octavo_worker.model.recurrent.layers import DeltaLayer, SsmLayer
from octavo_worker.model.stage import STAGE_BYTES
from octavo_worker.runner.cuda.plans import AttentionPlans

WORKSPACE = 1 << 30
"""Bytes for cuBLAS, CUDA graphs, and the sampler's copies."""


def room_for_cache(options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel) -> int:
    """Bytes of the GPU's memory that the KV cache may take: the share `gpu_memory` of all, less what is in use by any
    process, less what steps need, those of `others` beside the model, too. Raises `ModelError` if nothing is left."""
    torch.cuda.empty_cache()  # of what loading took for a while
    free, total = torch.cuda.mem_get_info(model.device)
    needed = step_bytes(options, model, max_model_len, *others)
    room = int(options.gpu_memory * total) - (total - free) - needed
    if room <= 0:
        raise ModelError(
            f"the model leaves no room for a KV cache: {free >> 20} of {total >> 20} MiB are free and "
            f"{needed >> 20} MiB are needed for its steps; give a smaller model, "
            "or less of --max-running, --token-budget or --max-model-len."
        )
    return room


def step_bytes(options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel) -> int:
    """Logits of a full batch in the model's dtype and in float32, and what experts, latent attention and norms over
    ranks make of its rows, and the chunks of prompts, both in a graph and outside of one; what recurrent layers make;
    room for the keys of expanded prompts; partial results of attention; block tables; the copies of host blocks; and a
    constant for the rest."""
    logits = 2 * options.most_samples * model.vocab_size * (model.dtype.itemsize + 4)
    cached = KV_DTYPES.get(options.kv_dtype)
    partial = sum(AttentionPlans.scratch_bytes(m, options.max_running, max_model_len, cached) for m in (model, *others))
    groups = 2 if model.reads_windows and group_window(model.cache) else 1
    rows = groups * (options.max_running + options.most_samples) + options.max_running * len(others)
    tables = rows * -(-max_model_len // options.block_size) * 4
    staged = STAGE_BYTES if options.host_cache_bytes else 0
    made = 2 * (expert_bytes(model) + latent_bytes(model) + chunk_bytes(model, options.max_running))
    made += 2 * gathered_bytes(model) + recurrent_bytes(model) + expansion_bytes(model, max_model_len)
    return logits + made + partial + tables + staged + WORKSPACE


def expert_bytes(model: CausalModel) -> int:
    """Bytes of what the experts of one layer make of as many rows as there are buffers for, on their way to the sum."""
    if not isinstance(model, Decoder):
        return 0
    rows = len(model.buffers.hidden)
    return max((mixture.step_bytes(rows) for mixture in model.mixtures), default=0)


def gathered_bytes(model: CausalModel) -> int:
    """Bytes of what one layer's norms of all heads gather over ranks, of as many rows as there are buffers for."""
    if not isinstance(model, Decoder):
        return 0
    mixers = [block.attention for block in model.layers.blocks if isinstance(block.attention, Attention)]
    norms = [mixer.whole_norms for mixer in mixers if mixer.whole_norms is not None]
    return max((each.step_bytes(len(model.buffers.hidden)) for each in norms), default=0)


def recurrent_bytes(model: CausalModel) -> int:
    """Bytes of what one recurrent layer makes of as many rows as there are buffers for: the product in front of it, its
    output, and room in float32 for an output without its norm."""
    if not isinstance(model, Decoder):
        return 0
    layers = [layer for layer in model.config.recurrent_layers if layer is not None]
    made = [sum(segment.size for segment in layer.segments) + layer.inner.size for layer in layers]
    widest = max(
        (width * model.dtype.itemsize + 4 * layer.inner.size for width, layer in zip(made, layers, strict=True)),
        default=0,
    )
    return len(model.buffers.hidden) * widest


def chunk_bytes(model: CausalModel, sequences: int) -> int:
    """Bytes of the room for chunks of prompts in one recurrent layer, of as many rows as there are buffers for."""
    if not isinstance(model, Decoder) or not model.has_chunks:
        return 0
    layers = model.config.recurrent_layers
    tiles = [delta_tiles(layer.key_heads, layer.heads) for layer in layers if isinstance(layer, DeltaLayer)]
    tiles += [
        ssm_tiles(layer.groups, layer.heads, layer.state_size, layer.head_dim)
        for layer in layers
        if isinstance(layer, SsmLayer)
    ]
    return max(room_bytes(each, len(model.buffers.hidden), sequences) for each in tiles)


def expansion_bytes(model: CausalModel, max_model_len: int) -> int:
    """Bytes of the room for the keys and values of one layer's expanded prompts."""
    if not isinstance(model, Decoder) or model.expanded is None:
        return 0
    return ExpansionRoom.step_bytes(model.expanded, model.dtype, max_model_len + len(model.buffers.hidden))


def latent_bytes(model: CausalModel) -> int:
    """Bytes of the queries of one layer with latent attention, and of what they read, of as many rows as there are
    buffers for. In the expanded form both are as wide as heads."""
    if not isinstance(model, Decoder):
        return 0
    layers = [block.attention.layer for block in model.layers.blocks if isinstance(block.attention, LatentAttention)]
    read = (max(c.rank, 2 * (head_dim(c) or 0) if model.expanded is not None else 0) for c in layers)
    columns = (
        c.heads * (c.plain + c.rotated + c.width + each + c.value_dim) for c, each in zip(layers, read, strict=True)
    )
    return len(model.buffers.hidden) * max(columns, default=0) * model.dtype.itemsize
