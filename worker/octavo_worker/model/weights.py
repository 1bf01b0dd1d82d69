"""Weights of the generic decoder: from safetensors straight into fused tensors, or made up from the config alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.errors import CheckpointError

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Names:
    """What a family's checkpoints call their tensors, without `.weight` and `.bias`.

    `qkv` and `up` list the parts in the order in which they are stacked; one name means the checkpoint already has
    them stacked. `prefixes` are tried in turn. `transposed` matrices are stored `[in, out]`.
    """

    prefixes: tuple[str, ...] = ("model.",)
    embed: str = "embed_tokens"
    positions: str = "embed_positions"
    final_norm: str = "norm"
    head: str = "lm_head"
    layer: str = "layers.{}."
    attn_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    out: str = "self_attn.o_proj"
    post_attn_norm: str = "post_attention_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    post_mlp_norm: str = "post_feedforward_layernorm"
    transposed: bool = False
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)


NAMES: dict[str, Names] = {
    "llama": Names(),
    "gemma2": Names(mlp_norm="pre_feedforward_layernorm"),
    "phi3": Names(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
    "gpt2": Names(
        prefixes=("transformer.", ""),
        embed="wte",
        positions="wpe",
        final_norm="ln_f",
        layer="h.{}.",
        attn_norm="ln_1",
        qkv=("attn.c_attn",),
        out="attn.c_proj",
        mlp_norm="ln_2",
        up=("mlp.c_fc",),
        down="mlp.c_proj",
        transposed=True,
        ignored=(".attn.bias", ".attn.masked_bias"),
    ),
    "opt": Names(
        prefixes=("model.decoder.", "decoder."),
        final_norm="final_layer_norm",
        attn_norm="self_attn_layer_norm",
        out="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up=("fc1",),
        down="fc2",
    ),
}


@dataclass(slots=True)
class Linear:
    """`weight[out, in]`, `bias[out]`."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(slots=True)
class Norm:
    weight: Tensor
    bias: Tensor | None = None


@dataclass(slots=True)
class LayerWeights:
    attn_norm: Norm | None
    qkv: Linear  # rows: q heads, k heads, v heads
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    post_attn_norm: Norm | None
    mlp_norm: Norm | None
    up: Linear  # rows: gate, up (gated), or just up
    down: Linear
    post_mlp_norm: Norm | None


@dataclass(slots=True)
class DecoderWeights:
    embed: Tensor  # [vocab, hidden]
    positions: Tensor | None
    layers: list[LayerWeights]
    final_norm: Norm
    head: Tensor  # [vocab, hidden]; the same tensor as `embed` when tied


class WeightSource(Protocol):
    """Where tensors come from. `read` fills `target` with the tensor called `name` (its transpose, if asked)."""

    def prefix(self, candidates: Sequence[str], marker: str) -> str: ...

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, target: Tensor, transposed: bool = False) -> None: ...

    def finish(self, ignored: Iterable[str]) -> None: ...


@dataclass
class Checkpoint:
    """The safetensors files of a folder, single or sharded.

    Raises `CheckpointError`, naming tensors, for what is missing, has another shape, or nobody asked for.
    """

    files: dict[str, Path]  # tensor name -> file
    unread: set[str] = field(default_factory=set)
    handles: dict[Path, safe_open] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        if (folder / INDEX).is_file():
            names = json.loads((folder / INDEX).read_text())["weight_map"]
            files = {name: folder / file for name, file in names.items()}
        else:
            files, whole = {}, folder / "model.safetensors"  # others beside it are adapters and other forms of the same
            for file in [whole] if whole.is_file() else sorted(folder.glob("*.safetensors")):
                with safe_open(file, framework="pt") as tensors:
                    files |= dict.fromkeys(tensors.keys(), file)
        if not files:
            raise CheckpointError(_no_safetensors(folder))
        if absent := sorted({file.name for file in files.values() if not file.is_file()}):
            raise CheckpointError(f"{folder}: {INDEX} names files that are not there: {', '.join(absent)}.")
        return cls(files, set(files))

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        for candidate in candidates:
            if f"{candidate}{marker}" in self.files:
                return candidate
        return candidates[0]

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def read(self, name: str, target: Tensor, transposed: bool = False) -> None:
        if name not in self.files:
            raise CheckpointError(f"tensor {name!r} is missing from the checkpoint; does config.json belong to it?")
        file = self.files[name]
        if file not in self.handles:
            self.handles[file] = safe_open(file, framework="pt")
        tensor = self.handles[file].get_tensor(name)
        tensor = tensor.T if transposed else tensor
        if tensor.shape != target.shape:
            wanted, got = tuple(target.shape), tuple(tensor.shape)
            raise CheckpointError(f"tensor {name!r} has shape {got}, but config.json says {wanted}.")
        target.copy_(tensor)
        self.unread.discard(name)

    def finish(self, ignored: Iterable[str]) -> None:
        endings = tuple(ignored)
        if surplus := sorted(name for name in self.unread if not name.endswith(endings)):
            shown = ", ".join(surplus[:5]) + (f" and {len(surplus) - 5} more" if len(surplus) > 5 else "")
            raise CheckpointError(f"the checkpoint has tensors that its config.json has no place for: {shown}.")


class RandomWeights:
    """Seeded weights for `--load-format dummy`: as a freshly initialised model, made on the device that they are for.
    On the CPU they are the same on every machine."""

    def __init__(self, seed: int, norm_scale: float, device: torch.device, std: float = 0.02) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.norm_scale = norm_scale
        self.std = std

    def prefix(self, candidates: Sequence[str], marker: str) -> str:
        return candidates[0]

    def __contains__(self, name: str) -> bool:
        return False  # nothing that a model can do without

    def read(self, name: str, target: Tensor, transposed: bool = False) -> None:
        if target.dim() == 1:
            target.fill_(0.0 if name.endswith(".bias") else self.norm_scale)
        else:
            dtype = torch.float32 if target.is_cpu else target.dtype
            made = torch.empty(target.shape, dtype=dtype, device=target.device)
            target.copy_(made.normal_(0.0, self.std, generator=self.generator))

    def finish(self, ignored: Iterable[str]) -> None:
        pass


def load_weights(
    config: DecoderConfig, source: WeightSource, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """All weights of the decoder in `dtype` on `device`. Raises `CheckpointError`, naming the tensor."""
    loader = _Loader(config, source, dtype, device)
    weights = loader.decoder()
    source.finish(loader.names.ignored)
    return weights


class _Loader:
    def __init__(self, config: DecoderConfig, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.source, self.dtype, self.device = config, source, dtype, device
        self.names = NAMES[config.family]
        self.root = source.prefix(self.names.prefixes, f"{self.names.embed}.weight")

    def decoder(self) -> DecoderWeights:
        c, names = self.config, self.names
        embed = self._table(f"{self.root}{names.embed}", c.vocab_size)
        learned = c.position_offset is not None
        rows = c.max_position + (c.position_offset or 0)
        return DecoderWeights(
            embed=embed,
            positions=self._table(f"{self.root}{names.positions}", rows) if learned else None,
            layers=[self._layer(f"{self.root}{names.layer.format(i)}") for i in range(len(c.layers))],
            final_norm=self._norm(f"{self.root}{names.final_norm}"),
            head=self._head(embed),
        )

    def _head(self, embed: Tensor) -> Tensor:
        """Some checkpoints say that it is the embedding and have one all the same: mostly a copy, else it counts."""
        if self.config.tied and f"{self.names.head}.weight" not in self.source:
            return embed
        head = self._table(self.names.head, self.config.vocab_size)
        return embed if self.config.tied and torch.equal(head, embed) else head

    def _layer(self, at: str) -> LayerWeights:
        c, names = self.config, self.names
        q, kv = c.q_size, c.kv_size
        qkv = (q, kv, kv) if len(names.qkv) == 3 else (q + 2 * kv,)
        up = (c.intermediate_size,) * len(names.up) if len(names.up) == 2 or not c.gated else (2 * c.intermediate_size,)
        q_norm, k_norm = {"none": (0, 0), "head": (c.head_dim, c.head_dim), "whole": (q, kv)}[c.qk_norm]
        return LayerWeights(
            attn_norm=self._norm(at + names.attn_norm) if c.pre_norm else None,
            qkv=self._linear([at + n for n in names.qkv], qkv, c.hidden_size, c.qkv_bias),
            q_norm=self._scale(at + names.q_norm, q_norm) if q_norm else None,
            k_norm=self._scale(at + names.k_norm, k_norm) if k_norm else None,
            out=self._linear([at + names.out], (c.hidden_size,), q, c.out_bias),
            post_attn_norm=self._norm(at + names.post_attn_norm) if c.post_norm else None,
            mlp_norm=self._norm(at + names.mlp_norm) if c.pre_norm else None,
            up=self._linear([at + n for n in names.up], up, c.hidden_size, c.mlp_bias),
            down=self._linear([at + names.down], (c.hidden_size,), c.intermediate_size, c.mlp_bias),
            post_mlp_norm=self._norm(at + names.post_mlp_norm) if c.post_norm else None,
        )

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _table(self, name: str, rows: int) -> Tensor:
        table = self._empty(rows, self.config.hidden_size)
        self.source.read(f"{name}.weight", table)
        return table

    def _linear(self, names: list[str], rows: tuple[int, ...], columns: int, biased: bool) -> Linear:
        """One matrix out of stacked parts; each part is read into its rows, so nothing is held twice."""
        linear = Linear(self._empty(sum(rows), columns), self._empty(sum(rows)) if biased else None)
        for name, weight in zip(names, linear.weight.split(rows), strict=True):
            self.source.read(f"{name}.weight", weight, self.names.transposed)
        if linear.bias is not None:
            for name, bias in zip(names, linear.bias.split(rows), strict=True):
                self.source.read(f"{name}.bias", bias)
        return linear

    def _scale(self, name: str, size: int) -> Tensor:
        scale = self._empty(size)
        self.source.read(f"{name}.weight", scale)
        return scale

    def _norm(self, name: str) -> Norm:
        norm = Norm(self._scale(name, self.config.hidden_size))
        if self.config.norm == "layer":
            norm.bias = self._empty(self.config.hidden_size)
            self.source.read(f"{name}.bias", norm.bias)
        return norm


def _no_safetensors(folder: Path) -> str:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        return (
            f"{folder} holds pickled weights (.bin), which can run code when loaded. Convert them once: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, safe_serialization=True)."
        )
    return f"{folder} holds no .safetensors weights. To run with random weights give --load-format dummy."
