"""Models that guess tokens for another one: loaded beside it, then attached to its runner."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace

from octavo_kernels.products.product import COUNTERS
from octavo_worker.assembly.cache_size import cache_dtype, token_budget
from octavo_worker.assembly.choices import described_by, read_config
from octavo_worker.assembly.models import load_model, weight_source
from octavo_worker.contract.cache import common_window
from octavo_worker.contract.files import ModelNotFound, model_folder, read_json
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.causal_model import CacheConfig, CausalModel
from octavo_worker.model.checkpoint.formats import Reader
from octavo_worker.model.config_file import read_file
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.eagle.build import build_head
from octavo_worker.model.eagle.config import head_config
from octavo_worker.model.eagle.head import EagleHead
from octavo_worker.model.eagle.pairing import check_pair
from octavo_worker.model.errors import ModelError, UnsupportedModel
from octavo_worker.model.families import STATED
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.vocabularies import check_same_vocabulary
from octavo_worker.runner.cuda.draft_batches import DraftBatches
from octavo_worker.runner.cuda.draft_model import CudaDraftModel
from octavo_worker.runner.cuda.draft_passes import DraftPasses, plans_for_passes
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.draft_model import DraftModel, DraftSizes
from octavo_worker.runner.eagle_drafts import EagleDrafts
from octavo_worker.runner.paged import PagedRunner


class NoGuesser:
    """Nothing beside the target."""

    models: tuple[CausalModel, ...] = ()

    def prepare(self, cache: CacheConfig) -> None:
        """Allocate what the target fills for the guesser, in blocks of the target's `cache`."""

    def attach(self, runner: PagedRunner | CudaRunner, cache: CacheConfig) -> None:
        """Give the target's runner what guesses for it."""


@dataclass
class DraftGuesser(NoGuesser):
    """A smaller model; `context` tokens of a sequence are all it can see."""

    options: ModelOptions
    model: CausalModel
    context: int

    @property
    def models(self) -> tuple[CausalModel, ...]:  # type: ignore[override]
        return (self.model,)

    def attach(self, runner: PagedRunner | CudaRunner, cache: CacheConfig) -> None:
        cache, sizes = self._own(cache), self._sizes(runner)
        if isinstance(runner, PagedRunner):
            runner.draft_model = DraftModel(self.model, cache, sizes)
            return
        draft, places = CudaDraftModel(self.model, cache, sizes, self._batches(runner).place), runner.draft_places
        sequences = min(places.tokens.shape[1], self._rows(runner) // 2)
        passes = DraftPasses(
            self.model,
            places,
            draft.as_target,
            block_size=self.options.block_size,
            sequences=sequences,
            plans=plans_for_passes(self.model, sequences, self.context, cache.dtype),
            graphs=runner.captures and self.model.is_capturable is True,
        )
        draft.use(passes, places)
        runner.use_draft(draft)

    def _own(self, cache: CacheConfig) -> CacheConfig:
        return dataclasses.replace(cache, dtype=cache_dtype(self.options, self.model))

    def _sizes(self, runner: PagedRunner | CudaRunner) -> DraftSizes:
        return DraftSizes(self.context, runner.token_budget, runner.vocab_size, runner.first_host_block)

    def _rows(self, runner: CudaRunner) -> int:
        """Rows that the model has buffers for."""
        return runner.token_budget + self.options.max_running

    def _batches(self, runner: CudaRunner) -> DraftBatches:
        cached = cache_dtype(self.options, self.model)
        return DraftBatches(self.model, self.options.max_running, self._rows(runner), self.context, cached)


@dataclass
class HeadGuesser(DraftGuesser):
    """An EAGLE-3 head, which reads the target's layers."""

    target: Decoder

    def prepare(self, cache: CacheConfig) -> None:
        assert isinstance(self.model, EagleHead)
        self.target.taps = self.model.features
        self.model.features.allocate(cache)

    def attach(self, runner: PagedRunner | CudaRunner, cache: CacheConfig) -> None:
        place = None if isinstance(runner, PagedRunner) else self._batches(runner).place
        runner.draft_model = EagleDrafts(self.model, self._own(cache), self._sizes(runner), place)


def load_guesser(options: ModelOptions, target: CausalModel, max_model_len: int) -> NoGuesser:
    """The model that guesses for the target, if the options name one. Its weights are taken as they are. Raises
    `ModelError`."""
    named = options.draft_model or options.eagle_head
    if named is None:
        return NoGuesser()
    try:
        folder = model_folder(named)
    except ModelNotFound as error:
        raise ModelError(f"--speculate {options.speculate}: {error}.") from error
    if options.draft_model is not None:
        return load_draft(options, folder, target, max_model_len)
    try:
        # Behind the length of the texts that it was trained with a head is right less often, and asked less often.
        return load_head(options, folder, target, max_model_len)
    except ModelError as error:
        raise type(error)(f"--speculate {options.speculate}: {error}") from error


def load_head(options: ModelOptions, folder: Path, target: CausalModel, context: int) -> HeadGuesser:
    """An EAGLE-3 head. Raises `ModelError`."""
    decoder = check_pair(target, model_folder(options.model), folder)
    config = read_file(folder, STATED) or read_config(folder)
    described = head_config(read_json(folder / "config.json"), described_by(config, None), decoder.config)
    source = weight_source(options, described.layer, folder, target.device)
    products = Products(counter=torch.zeros(COUNTERS, dtype=torch.int32, device=target.device))
    reader = Reader(source, target.dtype, target.device, products)
    rows = token_budget(options, target.device) + options.most_samples
    return HeadGuesser(options, build_head(described, reader, decoder.layers.embed, rows), context, decoder)


def load_draft(options: ModelOptions, folder: Path, target: CausalModel, max_model_len: int) -> DraftGuesser:
    """A smaller model of the same vocabulary. Raises `ModelError`."""
    check_same_vocabulary(model_folder(options.model), folder)
    alone = {"model": str(folder), "quantization": "auto", "max_model_len": None, "speculate": "off"}
    model, context = load_model(replace(options, **alone))
    if any(model.states):
        raise UnsupportedModel(
            f"{folder.name} has recurrent layers, and a draft model keeps no states; give a draft whose layers are all "
            "attention, or --speculate suffix."
        )
    window = common_window(target.cache)
    if window and not 0 < common_window(model.cache) <= window:
        raise UnsupportedModel(
            f"{folder.name} sees more than the {window} tokens of the target's sliding window, and only those "
            "are kept; give a draft with the same window, or --speculate suffix."
        )
    return DraftGuesser(options, model, min(context, max_model_len))
