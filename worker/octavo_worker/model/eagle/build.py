"""An EAGLE-3 head from its checkpoint."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.formats import DenseFormat, Matrix, Reader
from octavo_worker.model.checkpoint.source import WeightSource
from octavo_worker.model.config import AttentionLayer, DecoderConfig, DenseMlp
from octavo_worker.model.eagle.config import HeadConfig
from octavo_worker.model.eagle.features import Features
from octavo_worker.model.eagle.head import EagleHead, HeadLayers
from octavo_worker.model.errors import CheckpointError
from octavo_worker.model.layers.attention import Attention
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.linear import Dense
from octavo_worker.model.layers.mlp import GatedMlp
from octavo_worker.model.layers.norm import AddNorm, RmsNorm

PLACES = ("midlayer.", "layers.0.")
"""Prefixes of the names of the layer's tensors."""


def build_head(config: HeadConfig, reader: Reader, embed: Tensor, tokens: int) -> EagleHead:
    """For steps of up to `tokens` tokens. `embed` is the target's, for a head that has none. Raises `CheckpointError`,
    naming the tensor."""
    layer, source = config.layer, reader.source
    size = layer.hidden_size
    at = source.prefix(PLACES, "hidden_norm.weight")
    if source.under("embed_tokens"):
        embed = reader.read("embed_tokens.weight", layer.vocab_size, size)
    _check_kind(config, source)
    whole = reader.read("fc.weight", size, len(config.taps) * size)
    layers = HeadLayers(
        embed=embed,
        embed_norm=_norm(f"{at}input_layernorm", layer, reader),
        feature_norm=_norm(f"{at}hidden_norm", layer, reader),
        block=_block(at, layer, reader),
        norm=_norm("norm", layer, reader),
        head=DenseFormat().linear(Matrix(["lm_head"], [config.draft_vocab_size], size), reader),
        ids=_ids(config, reader),
    )
    source.finish(layer.names.has_no_use)
    _check_ids(layers.ids, layer.vocab_size)
    parts = (Dense(part.contiguous(), products=reader.products) for part in whole.split(size, dim=1))
    features = Features(dict(zip(config.taps, parts, strict=True)), size, tokens, reader.empty(0))
    return EagleHead(layer, layers, features, tokens)


def _check_kind(config: HeadConfig, source: WeightSource) -> None:
    """Raises `CheckpointError` for what is often taken for a head of EAGLE-3."""
    joined = source.under("fc").get("weight")
    if joined is None and source.under("model.norm"):
        raise CheckpointError("this is a whole model, not a head; give it as draft:FOLDER.")
    if joined is not None and joined.shape[-1] == 2 * config.layer.hidden_size and len(config.taps) > 2:
        raise CheckpointError("its fc joins an embedding and one state, as in EAGLE-1 and 2; give a head of EAGLE-3.")


def _block(at: str, c: DecoderConfig, reader: Reader) -> Block:
    names, dense = c.names, DenseFormat()
    attention, mlp = c.layers[0].attention, c.layers[0].mlp
    assert isinstance(attention, AttentionLayer)
    assert isinstance(mlp, DenseMlp)
    width = mlp.width
    qkv = Matrix([at + name for name in names.qkv], (c.q_size, c.kv_size, c.kv_size), 2 * c.hidden_size, c.qkv_bias)
    out = Matrix([at + names.out], [c.hidden_size], c.q_size, c.out_bias)
    up = Matrix([at + name for name in names.up], [width] * 2, c.hidden_size, c.mlp_bias)
    down = Matrix([at + names.down], [c.hidden_size], width, c.mlp_bias)
    return Block(
        attention=Attention(c, attention, dense.linear(qkv, reader), dense.linear(out, reader)),
        attention_end=AddNorm(_norm(at + names.mlp_norm, c, reader)),
        mlp=GatedMlp(dense.linear(up, reader), dense.linear(down, reader), width, c.gate),
        mlp_end=AddNorm(None),  # its own next row takes the sum as it is
    )


def _norm(name: str, config: DecoderConfig, reader: Reader) -> RmsNorm:
    return RmsNorm(reader.read(f"{name}.weight", config.hidden_size), config.norm_eps, 0.0)


def _ids(config: HeadConfig, reader: Reader) -> Tensor | None:
    """From `d2t`, which says how far each token's id is from the target's. `t2d`, which tells the tokens that are
    known, says the same."""
    vocab_size, stored = config.layer.vocab_size, reader.source.under("")
    if (known := stored.get("t2d")) is not None:
        if prod(known.shape) != vocab_size:
            raise CheckpointError(f"t2d is of {prod(known.shape)} tokens, but the target has {vocab_size}.")
        reader.source.skip("t2d")
    if config.draft_vocab_size == vocab_size and "d2t" not in stored:
        return None
    distances = torch.empty(config.draft_vocab_size, dtype=torch.int64, device=reader.device)
    reader.source.read("d2t", distances)
    reader.source.wait()
    return distances.add_(torch.arange(config.draft_vocab_size, device=reader.device))


def _check_ids(ids: Tensor | None, vocab_size: int) -> None:
    if ids is not None and not (0 <= int(ids.min()) <= int(ids.max()) < vocab_size and len(ids.unique()) == len(ids)):
        raise CheckpointError(f"d2t does not lead to {len(ids)} different ones of the target's {vocab_size} tokens.")
