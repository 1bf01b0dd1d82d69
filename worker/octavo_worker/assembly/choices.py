"""Decisions that options, config.json and the names of tensors allow before any weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from octavo_kernels.features import Feature, features
from octavo_worker.assembly.devices import (
    check_block_size,
    check_heads,
    check_kv_dtype,
    check_ranks,
    check_states,
    check_uniform,
    choose_device,
)
from octavo_worker.contract.cache import CacheSpec, shapes_of
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions, OnlineQuantization
from octavo_worker.model.checkpoint.formats import DenseFormat, Format, OnlineFormat, format_of
from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.config_file import FileConfig, ModelConfig, read_file
from octavo_worker.model.errors import ModelError, UnsupportedModel
from octavo_worker.model.families import STATED, decoder_config, family_of, reject
from octavo_worker.model.longrope import original_length, takes_long_factors
from octavo_worker.model.transfer import DTYPES, dtype_name

if TYPE_CHECKING:
    from octavo_worker.model.trial import Trial


@dataclass(frozen=True, slots=True)
class Choices:
    """How a model is loaded. `described` None is the transformers route, which the `trial` has found possible;
    `factors` are those of LongRoPE."""

    folder: Path
    config: ModelConfig
    form: Format
    dtype: torch.dtype
    device: torch.device
    described: DecoderConfig | None
    context: int
    trial: Trial | None = None
    factors: str = ""
    original: int | None = None  # context, of a model with LongRoPE
    advice: str = ""  # for a config that seems to lack something


def choose(options: ModelOptions, *, decoders: bool = True) -> Choices:
    """Raises `ModelError` for all that can be refused by then. Without `decoders` every model takes the transformers
    route."""
    folder = model_folder(options.model)
    config = (read_file(folder, STATED) if decoders else None) or read_config(folder)
    form: Format = format_of(folder)
    reject(config)
    dtype = choose_dtype(options.dtype, config)
    device = choose_device(options.device)
    check_block_size(options.block_size, device)
    decoders = decoders and has_decoder(config, device, dtype)
    trial = None if decoders else tried_route(config, form, dtype)
    context = context_length(options.max_model_len, config)
    original, is_long = original_length(config), False
    if original is not None:
        is_long = takes_long_factors(options.longrope, original, options.max_model_len, context)
        context = context if is_long else min(context, original)
    described = described_by(config, original and original + int(is_long)) if decoders else None
    if described is None:
        trial = trial or tried_route(config, form, dtype)
    check_states(device, dtype, config.model_type, described)
    check_kv_dtype(options.kv_dtype, device, dtype, config.model_type, described)
    if options.quantization != "auto":
        form = online_format(options.quantization, form, described, config.model_type, folder)
    if options.deterministic and device.type == "cuda":
        check_uniform(device, config, described)
    if options.tensor_parallel > 1:
        check_ranks(options, device, described, config.model_type)
    check_heads(config.model_type, shapes_of(kept_of(described, trial, dtype)), device)
    factors = "" if original is None else "long" if is_long else "short"
    advice = "" if options.max_model_len else yarn_advice(config)
    return Choices(folder, config, form, dtype, device, described, context, trial, factors, original, advice)


def has_decoder(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """True if octavo's own decoder computes the model on this device: latent attention has kernels on Hopper, and so
    have experts, in 16 bits. Recurrent layers have no other route."""
    family = family_of(config)
    if family is None or device.type == "cpu":
        return family is not None
    if family.latent is not None and Feature.LATENT not in features(device):
        return False
    if family.mlps is None or family.recurrent is not None:
        return True
    described = described_by(config, None)
    if described is None or not described.mixtures:
        return True
    return dtype.itemsize == 2 and Feature.EXPERTS in features(device)


def tried_route(config: ModelConfig, form: Format, dtype: torch.dtype) -> Trial:
    """The trial of a model on its transformers code. Raises `UnsupportedModel`."""
    if not isinstance(form, DenseFormat):
        raise UnsupportedModel(
            f"{config.model_type!r} runs on its transformers code, which takes no quantised weights here; give the "
            "checkpoint in bfloat16 or float16."
        )
    from octavo_worker.model.trial import tried  # brings transformers, which takes seconds

    assert not isinstance(config, FileConfig)  # which is of one of the decoder's families
    return tried(config, dtype)


def kept_of(described: DecoderConfig | None, trial: Trial | None, dtype: torch.dtype) -> Sequence[CacheSpec | None]:
    """The cache of a token, by layer."""
    if trial is not None:
        return trial.cache
    assert described is not None
    return described.cache(dtype_name(dtype))


def described_by(config: ModelConfig, rope_len: int | None) -> DecoderConfig | None:
    """The decoder that a config describes, None for another route. Raises `UnsupportedModel` for a config that lacks
    something."""
    try:
        return decoder_config(config, rope_len)
    except (AttributeError, KeyError, TypeError) as error:
        raise UnsupportedModel(
            f"the config.json of this {config.model_type!r} lacks what the model needs ({error}); compare it with the "
            "file of a model that runs."
        ) from error


def online_format(
    kind: OnlineQuantization, form: Format, described: DecoderConfig | None, family: str, folder: Path
) -> Format:
    """The format that quantises a checkpoint of format `form` as it is read. Raises `UnsupportedModel`."""
    if not isinstance(form, DenseFormat):
        raise UnsupportedModel(f"{folder} is quantised already; leave --quantization out.")
    if described is None:
        raise UnsupportedModel(
            f"--quantization covers the models of octavo's own decoder, not {family!r}; leave it out."
        )
    return OnlineFormat(kind, described.names.heads)


def read_config(folder: Path) -> ModelConfig:
    """As transformers reads it. Raises `UnsupportedModel`."""
    from octavo_worker.model.library import library_config  # brings transformers, which takes seconds

    return library_config(folder)


def context_length(asked: int | None, config: ModelConfig) -> int:
    """`asked`, by default the model's own, which is the most. Raises `ModelError` for more than that, or where neither
    is known."""
    longest = longest_context(config)
    wanted = asked or longest
    if wanted is None:
        raise ModelError(f"{config.model_type!r} names no longest context; give --max-model-len.")
    if longest is not None and wanted > longest:
        advice = yarn_advice(config)
        raise ModelError(
            f"max_model_len {wanted} is more than the model's context of {longest} tokens{advice and '; '}{advice}."
        )
    return wanted


def longest_context(config: ModelConfig) -> int | None:
    stated: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return stated if stated is None or stated > 0 else None


def yarn_advice(config: ModelConfig) -> str:
    """A half-sentence for a config whose YaRN (arXiv 2309.00071) reaches further than the context that it states:
    model cards name the factor alone. Else empty."""
    parameters: dict[str, Any] = getattr(config.get_text_config(), "rope_parameters", None) or {}
    longest = longest_context(config)
    if parameters.get("rope_type") != "yarn" or longest is None:
        return ""
    reach = int(parameters["factor"] * (parameters.get("original_max_position_embeddings") or longest))
    if reach <= longest:
        return ""
    return f"its YaRN reaches {reach} tokens: set max_position_embeddings in config.json to {reach} to serve as many"


def choose_dtype(name: str, config: ModelConfig) -> torch.dtype:
    """The dtype named, or for "auto" the config's, else float32. Raises `UnsupportedModel` for another type."""
    stated = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None) or torch.float32
    name = str(stated).removeprefix("torch.") if name == "auto" else name
    if name not in DTYPES:
        raise UnsupportedModel(f"dtype {name} is not supported; give --dtype bfloat16.")
    return DTYPES[name]
