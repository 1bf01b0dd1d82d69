"""Models from their folders: a decoder from its weights, or the transformers route."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from octavo_kernels.products.product import COUNTERS
from octavo_worker.assembly.cache_size import token_budget
from octavo_worker.assembly.choices import Choices, choose
from octavo_worker.assembly.devices import device_of
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.causal_model import CausalModel
from octavo_worker.model.checkpoint.build import Split, build_layers
from octavo_worker.model.checkpoint.formats import DrawnFormat, QuantisedFormat, Reader
from octavo_worker.model.checkpoint.source import Checkpoint, RandomWeights, WeightSource
from octavo_worker.model.checkpoint.streamed import StreamedCheckpoint
from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.config_file import FileConfig
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.longrope import fix_factors
from octavo_worker.model.shards import Shards
from octavo_worker.runner.parallel.leader import Member

log = logging.getLogger(__name__)


def load_model(
    options: ModelOptions, *, decoders: bool = True, member: Member | None = None
) -> tuple[CausalModel, int]:
    """The model and its context length. Without `decoders` every model takes the transformers route. A `member` of
    several ranks loads its part. Raises `ModelError`."""
    chosen = choose(options, decoders=decoders)
    if chosen.advice:
        log.warning("serving %d tokens; %s", chosen.context, chosen.advice)
    return _load(options, chosen, member), chosen.context


def _load(options: ModelOptions, chosen: Choices, member: Member | None) -> CausalModel:
    folder, described, dtype = chosen.folder, chosen.described, chosen.dtype
    device = chosen.device if member is None else device_of(chosen.device, member.rank.index)
    if device.index is not None:
        torch.cuda.set_device(device)
    if described is None:
        assert chosen.trial is not None
        assert not isinstance(chosen.config, FileConfig)  # which is of one of the decoder's families
        from octavo_worker.model.transformers_route import load_transformers  # brings transformers, which takes seconds

        seed = options.seed if options.load_format == "dummy" else None
        routed = load_transformers(folder, chosen.config, chosen.trial, dtype, device, seed)
        if chosen.original is not None:
            fix_factors(routed.model, chosen.original, long=chosen.factors == "long")
        routed.factors = chosen.factors
        return routed
    uniform = options.deterministic and device.type == "cuda"
    products = Products(uniform, torch.zeros(COUNTERS, dtype=torch.int32, device=device))
    source, form = weight_source(options, described, folder, device), chosen.form
    if isinstance(form, QuantisedFormat) and isinstance(source, RandomWeights):
        form = DrawnFormat(form.method, source)
    rows = token_budget(options, device) + options.most_samples  # tokens, or rows to sample or score: some twice
    reader, held, group, split = Reader(source, dtype, device, products), described, None, None
    if member is not None:
        group, shards = member.join(described, rows, dtype, device), Shards(described, member.rank, options.experts)
        held, split = shards.config, Split(shards, group)
    layers = build_layers(described, reader, form, split)
    decoder = Decoder(held, layers, rows, uniform=uniform, group=group)
    decoder.factors = chosen.factors
    return decoder


def weight_source(options: ModelOptions, described: DecoderConfig, folder: Path, device: torch.device) -> WeightSource:
    """Random weights, or those of the files of `folder`. Raises `CheckpointError`."""
    if options.load_format == "dummy":
        return RandomWeights(options.seed, 1.0 - described.norm_offset, device)
    return (StreamedCheckpoint if device.type == "cuda" else Checkpoint).open(folder)
