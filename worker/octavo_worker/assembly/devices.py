"""The devices of a model's ranks: which there are, and what they cannot do."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import torch

from octavo_kernels import cuda, ops
from octavo_kernels.attention.wide import takes_wide
from octavo_kernels.features import Feature, features
from octavo_kernels.recurrent import sizes
from octavo_worker.contract.cache import AttentionShape
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import NEXT, ModelError, UnsupportedModel
from octavo_worker.model.recurrent.layers import DeltaLayer, RecurrentLayer, SsmLayer
from octavo_worker.model.shards import check_divisible

LEAST_BLOCK = 16  # that every device takes
MOST_WIDTH_ON_AMD = 472  # of a head: more does not fit 64 KiB beside the scores


def choose_device(name: str) -> torch.device:
    """The device named, or for "auto" a GPU that torch and the kernels can use, else the CPU. To torch AMD's are
    "cuda", too. Raises `ModelError` where "cuda" cannot be used."""
    usable = torch.cuda.is_available() and cuda.available()
    if name == "cuda" and not usable:
        missing = "the kernels were not built for this GPU" if torch.cuda.is_available() else "torch sees no GPU"
        raise ModelError(f"--device cuda: {missing}; give --device cpu, or see kernels/README.md.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and usable) else "cpu")


def check_block_size(block_size: int, device: torch.device) -> None:
    """Raises `ModelError` for a size that this device's kernels do not take."""
    try:
        ops.check_block_size(block_size, device)
    except ValueError as error:
        raise ModelError(f"--block-size {block_size}: {error}.") from error


def check_heads(family: str, shapes: Iterable[AttentionShape], device: torch.device) -> None:
    """Raises `UnsupportedModel` for heads that the kernels of this device do not take."""
    for shape in shapes:
        if device.type == "cuda" and torch.version.hip is not None and shape.width > MOST_WIDTH_ON_AMD:
            raise UnsupportedModel(
                f"{family!r}: attention on AMD's GPUs has no room for heads of {shape.width} elements, "
                f"{MOST_WIDTH_ON_AMD} are the most; give --device cpu."
            )
        try:
            if shape.latent:
                ops.check_latent(shape.width)
            else:
                ops.empty_cache(1, 1, shape.kv_heads, LEAST_BLOCK, shape.width, torch.float16, "meta")
        except ValueError as error:
            raise UnsupportedModel(f"{family!r}: {error}; {NEXT}") from error
        if shape.heads % shape.kv_heads:
            raise UnsupportedModel(
                f"{family!r}: {shape.heads} query heads cannot share {shape.kv_heads} heads of keys and values evenly; "
                f"{NEXT}"
            )


def check_states(device: torch.device, dtype: torch.dtype, family: str, described: DecoderConfig | None) -> None:
    """Raises `UnsupportedModel` for recurrent layers that the kernels of a GPU do not take."""
    if device.type == "cpu" or described is None or not any(described.recurrent_layers):
        return
    if Feature.RECURRENT not in features(device):
        raise UnsupportedModel(
            f"{family!r} has recurrent layers, which need a Hopper GPU and all kernels of octavo-kernels, not "
            f"{torch.cuda.get_device_name(device)} with {cuda.build_name()}; give --device cpu."
        )
    if described.mixtures and dtype.itemsize != 2:
        raise UnsupportedModel(
            f"{family!r} has experts, which a GPU computes in 16 bits alone; give --dtype bfloat16, or --device cpu."
        )
    if described.mixtures and not described.gated and described.activation != "relu2":
        raise UnsupportedModel(
            f"{family!r} has experts without a gate, which a GPU computes with the square of relu alone, not "
            f"{described.activation}; give --device cpu."
        )
    for layer in described.recurrent_layers:
        try:
            if layer is not None:
                _check_recurrent(layer)
        except ValueError as error:
            raise UnsupportedModel(
                f"{family!r} has recurrent layers with {error}, for which there is no kernel on a GPU; give --device "
                "cpu."
            ) from error


def _check_recurrent(layer: RecurrentLayer) -> None:
    if isinstance(layer, DeltaLayer):
        sizes.check_delta(layer.key_heads, layer.heads, layer.key_dim, layer.value_dim, layer.taps)
    elif isinstance(layer, SsmLayer):
        sizes.check_ssm(layer.heads, layer.state_size, layer.head_dim, layer.taps)
    else:
        sizes.check_conv(layer.channels, layer.taps)


def check_kv_dtype(
    kv_dtype: str, device: torch.device, dtype: torch.dtype, family: str, described: DecoderConfig | None
) -> None:
    """Raises `UnsupportedModel` for a cache in eight bits of latent rows that a GPU has no kernels for."""
    if kv_dtype == "auto" or device.type == "cpu" or described is None:
        return
    for layer in described.latent_layers:
        if not takes_wide(device, dtype, ops.KV_DTYPES[kv_dtype], layer.width, layer.rank):
            raise UnsupportedModel(
                f"{family!r} keeps latent rows of {layer.rank} + {layer.rotated}, which GPUs take in eight bits for "
                "512 + 64 alone, on Hopper with --dtype bfloat16 or float16; leave --kv-dtype out, or give "
                "--device cpu."
            )


def check_uniform(device: torch.device, config: ModelConfig, described: DecoderConfig | None) -> None:
    """Raises `ModelError` if the GPU cannot compute each row as if it were alone."""
    if Feature.UNIFORM not in features(device):
        name = torch.cuda.get_device_name(device)
        raise ModelError(
            "--deterministic needs a Hopper GPU and all kernels of octavo-kernels, not "
            f"{name} with {cuda.build_name()}; leave it off, or give --device cpu."
        )
    if described is None:
        raise UnsupportedModel(
            f"--deterministic covers the models of octavo's own decoder on a GPU, not {config.model_type!r}; leave it "
            "off, or give --device cpu."
        )
    if not described.has_even_heads:
        raise UnsupportedModel(
            f"--deterministic covers models whose layers have equal numbers of heads, not {config.model_type!r}; leave "
            "it off, or give --device cpu."
        )


def check_ranks(options: ModelOptions, device: torch.device, described: DecoderConfig | None, family: str) -> None:
    """Raises `ModelError` if a model cannot be computed by the ranks of `options` on this device."""
    if described is None:
        raise UnsupportedModel(
            f"--tensor-parallel covers the models of octavo's own decoder, not {family!r}, which runs on its "
            "transformers code; leave it out."
        )
    check_divisible(described, options.tensor_parallel, options.experts)
    if device.type == "cuda":
        check_gpus(options.tensor_parallel, device)


def check_gpus(ranks: int, device: torch.device) -> None:
    """Raises `ModelError` unless the first GPUs, one for each rank, are alike and reach each other's memory."""
    if Feature.RANKS not in features(device):
        raise ModelError(
            "--tensor-parallel runs on CPUs and on NVIDIA's GPUs with all kernels of octavo-kernels, not with "
            f"{cuda.build_name()}; start several workers: give --replicas instead."
        )
    if (gpus := torch.cuda.device_count()) < ranks:
        raise ModelError(f"--tensor-parallel {ranks} needs as many GPUs, but there are {gpus}; give fewer ranks.")
    names = [torch.cuda.get_device_name(index) for index in range(ranks)]
    if len(set(names)) > 1:
        raise ModelError(
            f"--tensor-parallel needs GPUs that are alike, not {' and '.join(sorted(set(names)))}; name others with "
            "--devices."
        )
    for one, other in permutations(range(ranks), 2):
        if not torch.cuda.can_device_access_peer(one, other):
            raise ModelError(
                f"GPUs {one} and {other} do not reach each other's memory (nvidia-smi topo -p2p r); name others with "
                "--devices, or start several workers: give --replicas instead."
            )


def device_of(device: torch.device, rank: int) -> torch.device:
    """The device of a rank: GPUs are counted as they are visible."""
    return torch.device("cuda", rank) if device.type == "cuda" else device
