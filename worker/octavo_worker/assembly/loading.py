"""From options to a runner: device, dtype, route, and size of the KV cache."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace

from octavo_kernels import cuda, ops
from octavo_kernels.pools import reads_host
from octavo_worker.assembly.cache_size import asked_bytes, cache_config, cache_dtype, measured_room, token_budget
from octavo_worker.assembly.devices import check_block_size, check_ranks, check_uniform, choose_device, device_of
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.files import ModelNotFound, model_folder, read_json
from octavo_worker.contract.options import ModelOptions, OnlineQuantization
from octavo_worker.model.causal_model import CacheConfig, CausalModel
from octavo_worker.model.checkpoint.build import Split, build_layers
from octavo_worker.model.checkpoint.formats import (
    DenseFormat,
    DrawnFormat,
    Format,
    OnlineFormat,
    QuantisedFormat,
    Reader,
    format_of,
)
from octavo_worker.model.checkpoint.names import NAMES
from octavo_worker.model.checkpoint.source import Checkpoint, RandomWeights, WeightSource
from octavo_worker.model.checkpoint.streamed import StreamedCheckpoint
from octavo_worker.model.config import DecoderConfig, decoder_config, reject
from octavo_worker.model.config_file import FileConfig, ModelConfig, read_file
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.eagle.build import build_head
from octavo_worker.model.eagle.config import head_config
from octavo_worker.model.eagle.head import EagleHead
from octavo_worker.model.eagle.pairing import check_pair
from octavo_worker.model.errors import ModelError, UnsupportedModel
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.longrope import fix_factors, original_length, takes_long_factors
from octavo_worker.model.shards import Shards
from octavo_worker.model.vocabularies import check_same_vocabulary
from octavo_worker.ranks.processes import Ranks
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.cuda.copies import keep_copies
from octavo_worker.runner.cuda.draft_batches import DraftBatches
from octavo_worker.runner.cuda.draft_model import CudaDraftModel
from octavo_worker.runner.cuda.draft_passes import DraftPasses, plans_for_passes
from octavo_worker.runner.cuda.memory import room_for_cache
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.draft_model import DraftModel, DraftSizes
from octavo_worker.runner.eagle_drafts import EagleDrafts
from octavo_worker.runner.paged import PagedRunner
from octavo_worker.runner.parallel.leader import Leader, Loaded, Member, Sizes
from octavo_worker.runner.speeds import measure_speeds, measure_steps

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_runner(options: ModelOptions, ranks: Ranks | None = None) -> PagedRunner | CudaRunner:
    """Loads the model and allocates its KV cache. A model on several ranks has its further ones in `ranks`, which are
    started here if they were not before. Raises `ModelError`, `RanksFailed` or `ExchangeError` with the next step to
    take."""
    set_threads(options)
    if options.tensor_parallel > 1 and options.runner_guesses:
        kind = options.speculate.partition(":")[0]
        raise ModelError(f"--speculate {kind}: runs on one rank; give ngram or suffix, or leave --tensor-parallel out.")
    if options.tensor_parallel > 1 and ranks is None:
        ranks = Ranks.start(options)
    member = None if ranks is None else Member(Rank(0, options.tensor_parallel), ranks.memory)
    model, wanted_len = load_model(options, member=member)
    draft = load_guesser(options, model, wanted_len) if options.runner_guesses else None
    others = [] if draft is None else [draft[0]]
    copy_weights(options, model, wanted_len, *others)
    room, leader, handles = measured_room(options, model, wanted_len, *others), None, list[bytes]()
    if ranks is not None:
        assert model.group is not None
        leader = Leader(ranks, model.group)
        loaded = leader.await_loaded(Loaded(room, model.group.handle))
        room = None if room is None else min(each.room or 0 for each in loaded)
        handles = [each.handle for each in loaded]
    cache = cache_config(options, model, wanted_len, *others, room=room)
    if draft is not None and isinstance(draft[0], EagleHead):
        assert isinstance(model, Decoder)
        model.taps = draft[0].features
        model.taps.allocate(cache)
    readable = cache.num_host_blocks - 1 if cache.num_host_blocks and reads_host(model.device) else 0
    capacity = Capacity(cache.num_blocks - 1, options.block_size, readable, model.window)
    max_model_len = min(wanted_len, capacity.longest or wanted_len)
    if max_model_len < wanted_len:
        message = "max_model_len clamped from %d to %d, which is what the KV memory holds: %s"
        log.warning(message, wanted_len, max_model_len, capacity)
    if leader is not None:
        leader.begin(Sizes(cache.num_blocks, cache.num_host_blocks, max_model_len, handles))
        leader.group.connect(handles)
    runner = make_runner(options, model, cache, max_model_len, leader)
    if leader is not None:
        leader.join()
    if isinstance(runner, CudaRunner):
        runner.warm_up()
    if draft is not None:
        use_draft_model(options, *draft, runner, cache)
    if cache.num_host_blocks:
        runner.speeds = measure_speeds(runner)
    if options.drafts:
        runner.step_seconds = measure_steps(runner, options.max_running, options.drafts)
    return runner


def copy_weights(options: ModelOptions, model: CausalModel, max_model_len: int, *others: CausalModel) -> None:
    """Keeps quantised weights in 16 bits as well, where the device has room for that."""
    if isinstance(model, Decoder) and any(linear.copy_bytes for linear in model.layers.linears):
        room = room_for_cache(options, model, max_model_len, *others)
        keep_copies(model.layers.linears, room, asked_bytes(options, model, *others))


def make_runner(
    options: ModelOptions, model: CausalModel, cache: CacheConfig, max_model_len: int, leader: Leader | None = None
) -> PagedRunner | CudaRunner:
    """A rank's runner: that of the first of several has a `leader`."""
    budget = token_budget(options, model.device)
    if model.device.type == "cpu":
        return PagedRunner(model, cache, max_model_len, budget, leader)
    graphs = options.cuda_graphs and cuda.captures_graphs()
    if options.cuda_graphs and not graphs:
        log.info("steps launch their kernels one by one: graphs on %s were never tried", cuda.compiled.built_for)
    return CudaRunner(
        model,
        cache,
        max_model_len,
        budget,
        max_running=options.max_running,
        most_samples=options.most_samples,
        drafts=options.drafts,
        graphs=graphs,
        leader=leader,
    )


def set_threads(options: ModelOptions) -> None:
    """As given, else one a core, of which ranks have equal shares: threads that spin for one core halve their speed."""
    threads = options.threads
    if threads is None and options.tensor_parallel > 1:
        threads = max(1, ops.num_threads() // options.tensor_parallel)
    if threads:
        torch.set_num_threads(threads)
        ops.set_num_threads(threads)


def load_guesser(options: ModelOptions, target: CausalModel, max_model_len: int) -> tuple[CausalModel, int]:
    """The drafter of the target, and how many tokens of a sequence it can see. Its weights are taken as they are.
    Raises `ModelError`."""
    named = options.draft_model or options.eagle_head
    assert named is not None
    try:
        folder = model_folder(named)
    except ModelNotFound as error:
        raise ModelError(f"--speculate {options.speculate}: {error}.") from error
    if options.draft_model is not None:
        return load_draft(options, folder, target, max_model_len)
    try:
        # Behind the length of the texts that it was trained with a head is right less often, and asked less often.
        return load_head(options, folder, target), max_model_len
    except ModelError as error:
        raise type(error)(f"--speculate {options.speculate}: {error}") from error


def load_head(options: ModelOptions, folder: Path, target: CausalModel) -> EagleHead:
    """An EAGLE-3 head. Raises `ModelError`."""
    decoder = check_pair(target, model_folder(options.model), folder)
    config = read_file(folder) or read_config(folder)
    described = head_config(read_json(folder / "config.json"), _described(config, None), decoder.config)
    source = weight_source(options, described.layer, folder, target.device)
    products = Products(counter=torch.zeros(1, dtype=torch.int32, device=target.device))
    reader = Reader(source, target.dtype, target.device, products)
    rows = token_budget(options, target.device) + options.most_samples
    return build_head(described, reader, decoder.layers.embed, rows)


def load_draft(options: ModelOptions, folder: Path, target: CausalModel, max_model_len: int) -> tuple[CausalModel, int]:
    """A smaller model, and how many tokens of a sequence it can see. Raises `ModelError`."""
    check_same_vocabulary(model_folder(options.model), folder)
    alone = {"model": str(folder), "quantization": "auto", "max_model_len": None, "speculate": "off"}
    model, context = load_model(replace(options, **alone))
    if target.window and not 0 < model.window <= target.window:
        raise UnsupportedModel(
            f"{folder.name} sees more than the {target.window} tokens of the target's sliding window, and only those "
            "are kept; give a draft with the same window, or --speculate suffix."
        )
    return model, min(context, max_model_len)


def use_draft_model(
    options: ModelOptions, model: CausalModel, context: int, runner: PagedRunner | CudaRunner, cache: CacheConfig
) -> None:
    """Gives the runner a draft model or head of this `context`, whose cache has the blocks of its own."""
    cache = dataclasses.replace(cache, dtype=cache_dtype(options, model))
    sizes = DraftSizes(context, runner.token_budget, runner.vocab_size, runner.first_host_block)
    kind = EagleDrafts if isinstance(model, EagleHead) else DraftModel
    if isinstance(runner, PagedRunner):
        runner.draft_model = kind(model, cache, sizes)
        return
    most = runner.token_budget + options.max_running  # rows that the model has buffers for
    place = DraftBatches(model, options.max_running, most, context).place
    if kind is EagleDrafts:
        runner.draft_model = EagleDrafts(model, cache, sizes, place)
        return
    draft = CudaDraftModel(model, cache, sizes, place)
    places = runner.draft_places
    sequences = min(places.tokens.shape[1], most // 2)
    passes = DraftPasses(
        model,
        places,
        draft.as_target,
        block_size=options.block_size,
        sequences=sequences,
        plans=plans_for_passes(model, sequences, context),
        graphs=runner.captures and model.is_capturable is True,
    )
    draft.use(passes, places)
    runner.use_draft(draft)


@dataclass(frozen=True, slots=True)
class Choices:
    """The decisions of options, config.json and the names of tensors before any weight is read. `described` None is the
    transformers route, `factors` are those of LongRoPE."""

    folder: Path
    config: ModelConfig
    form: Format
    dtype: torch.dtype
    device: torch.device
    described: DecoderConfig | None
    context: int
    factors: str = ""
    original: int | None = None  # context, of a model with LongRoPE


def choose(options: ModelOptions, *, decoders: bool = True) -> Choices:
    """Raises `ModelError` for all that can be refused by then. Without `decoders` every model takes the transformers
    route."""
    folder = model_folder(options.model)
    config = (read_file(folder) if decoders else None) or read_config(folder)
    form: Format = format_of(folder)
    reject(config)
    dtype = choose_dtype(options.dtype, config)
    device = choose_device(options.device)
    check_block_size(options.block_size, device)
    context = context_length(options.max_model_len, config)
    original, is_long = original_length(config), False
    if original is not None:
        is_long = takes_long_factors(options.longrope, original, options.max_model_len, context)
        context = context if is_long else min(context, original)
    described = _described(config, original and original + int(is_long)) if decoders else None
    if described is None and not isinstance(form, DenseFormat):
        raise UnsupportedModel(
            f"{config.model_type!r} runs on its transformers code, which takes no quantised weights here; give the "
            "checkpoint in bfloat16 or float16."
        )
    if options.quantization != "auto":
        form = online_format(options.quantization, form, described, config.model_type, folder)
    if options.deterministic and device.type == "cuda":
        check_uniform(device, config, described)
    if options.tensor_parallel > 1:
        check_ranks(options.tensor_parallel, device, described, config.model_type)
    factors = "" if original is None else "long" if is_long else "short"
    return Choices(folder, config, form, dtype, device, described, context, factors, original)


def load_model(
    options: ModelOptions, *, decoders: bool = True, member: Member | None = None
) -> tuple[CausalModel, int]:
    """The model and its context length. Without `decoders` every model takes the transformers route. A `member` of
    several ranks loads its part."""
    chosen = choose(options, decoders=decoders)
    folder, described, dtype = chosen.folder, chosen.described, chosen.dtype
    device = chosen.device if member is None else device_of(chosen.device, member.rank.index)
    if device.index is not None:
        torch.cuda.set_device(device)
    if described is None:
        assert not isinstance(chosen.config, FileConfig)  # which is of one of the decoder's families
        from octavo_worker.model.transformers_route import load_transformers  # brings transformers, which takes seconds

        seed = options.seed if options.load_format == "dummy" else None
        routed = load_transformers(folder, chosen.config, dtype, device, seed)
        if chosen.original is not None:
            fix_factors(routed.model, chosen.original, long=chosen.factors == "long")
        routed.factors = chosen.factors
        return routed, chosen.context
    uniform = options.deterministic and device.type == "cuda"
    products = Products(uniform, torch.zeros(1, dtype=torch.int32, device=device))
    source, form = weight_source(options, described, folder, device), chosen.form
    if isinstance(form, QuantisedFormat) and isinstance(source, RandomWeights):
        form = DrawnFormat(form.method, source)
    rows = token_budget(options, device) + options.most_samples  # tokens, or rows to sample or score: some twice
    reader, held, group, split = Reader(source, dtype, device, products), described, None, None
    if member is not None:
        group, shards = member.join(described, rows, dtype, device), Shards(described, member.rank)
        held, split = shards.config, Split(shards, group)
    layers = build_layers(described, reader, form, split)
    decoder = Decoder(held, layers, rows, uniform=uniform, group=group)
    decoder.factors = chosen.factors
    return decoder, chosen.context


def _described(config: ModelConfig, rope_len: int | None) -> DecoderConfig | None:
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
    return OnlineFormat(kind, NAMES[described.family].head)


def weight_source(options: ModelOptions, described: DecoderConfig, folder: Path, device: torch.device) -> WeightSource:
    if options.load_format == "dummy":
        return RandomWeights(options.seed, 1.0 - described.norm_offset, device)
    return (StreamedCheckpoint if device.type == "cuda" else Checkpoint).open(folder)


def read_config(folder: Path) -> ModelConfig:
    """As transformers reads it. Raises `UnsupportedModel` where transformers cannot."""
    from transformers import AutoConfig

    try:
        config: ModelConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # classes of configs check their values, each in its own way
        reason = f"{type(error).__name__}: {error}"
        raise UnsupportedModel(
            f"transformers cannot read {folder / 'config.json'} ({reason}); it must be that of a text model that the "
            "installed transformers knows."
        ) from error
    return config


def context_length(asked: int | None, config: ModelConfig) -> int:
    """`asked`, by default the model's own, which is the most. Raises `ModelError` for more than that, or where neither
    is known."""
    longest: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    wanted = asked or longest
    if wanted is None:
        raise ModelError(f"{config.model_type!r} names no longest context; give --max-model-len.")
    if longest is not None and wanted > longest:
        raise ModelError(f"max_model_len {wanted} is more than the model's context of {longest} tokens.")
    return wanted


def choose_dtype(name: str, config: ModelConfig) -> torch.dtype:
    """The dtype named, or for "auto" the config's, else float32. Raises `UnsupportedModel` for another type."""
    stated = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None) or torch.float32
    name = str(stated).removeprefix("torch.") if name == "auto" else name
    if name not in DTYPES:
        raise UnsupportedModel(f"dtype {name} is not supported; give --dtype bfloat16.")
    return DTYPES[name]
