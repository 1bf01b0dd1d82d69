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
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.options import ModelOptions, OnlineQuantization
from octavo_worker.files import ModelNotFound, model_folder
from octavo_worker.model.base_runner import CacheConfig, CausalModel
from octavo_worker.model.cache_size import asked_bytes, cache_config, cache_dtype, token_budget
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
from octavo_worker.model.cuda.copies import keep_copies
from octavo_worker.model.cuda.draft_batches import DraftBatches
from octavo_worker.model.cuda.draft_model import CudaDraftModel
from octavo_worker.model.cuda.draft_passes import DraftPasses, plans_for_passes
from octavo_worker.model.cuda.memory import room_for_cache
from octavo_worker.model.cuda.runner import CudaRunner
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.draft_model import DraftModel, DraftSizes
from octavo_worker.model.errors import ModelError, UnsupportedModel
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.longrope import fix_factors, original_length, takes_long_factors
from octavo_worker.model.parallel.leader import Leader, Member, Sizes
from octavo_worker.model.parallel.shards import Rank, Shards, check_divisible
from octavo_worker.model.runner import PagedRunner
from octavo_worker.model.speeds import measure_speeds, measure_steps
from octavo_worker.model.vocabularies import check_same_vocabulary
from octavo_worker.rank_processes import Ranks

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_runner(options: ModelOptions, ranks: Ranks | None = None) -> PagedRunner | CudaRunner:
    """Loads the model and allocates its KV cache. A model on several ranks has its further ones in `ranks`, which are
    started here if they were not before. Raises `ModelError` or `RanksFailed` with the next step to take."""
    set_threads(options)
    if options.tensor_parallel > 1 and options.draft_model is not None:
        raise ModelError("--speculate draft: runs on one rank; give ngram or suffix, or leave --tensor-parallel out.")
    if options.tensor_parallel > 1 and ranks is None:
        ranks = Ranks.start(options)
    member = None if ranks is None else Member(Rank(0, options.tensor_parallel), ranks.memory)
    model, wanted_len = load_model(options, member=member)
    draft = None if options.draft_model is None else load_draft(options, model, wanted_len)
    models = [model] if draft is None else [model, draft[0]]
    if isinstance(model, Decoder) and any(linear.copy_bytes for linear in model.layers.linears):
        room = room_for_cache(options, model, wanted_len, *models[1:])
        keep_copies(model.layers.linears, room, asked_bytes(options, *models))
    cache = cache_config(options, model, wanted_len, *models[1:])
    readable = cache.num_host_blocks - 1 if cache.num_host_blocks and reads_host(model.device) else 0
    capacity = Capacity(cache.num_blocks - 1, options.block_size, readable, model.window)
    max_model_len = min(wanted_len, capacity.longest or wanted_len)
    if max_model_len < wanted_len:
        message = "max_model_len clamped from %d to %d, which is what the KV memory holds: %s"
        log.warning(message, wanted_len, max_model_len, capacity)
    budget = token_budget(options, model.device)
    runner: PagedRunner | CudaRunner
    if model.device.type == "cuda":
        graphs = options.cuda_graphs and cuda.captures_graphs()
        if options.cuda_graphs and not graphs:
            log.info("steps launch their kernels one by one: graphs on %s were never tried", cuda.compiled.built_for)
        runner = CudaRunner(
            model,
            cache,
            max_model_len,
            budget,
            max_running=options.max_running,
            most_samples=options.most_samples,
            drafts=options.drafts,
            graphs=graphs,
        )
        runner.warm_up()
    else:
        leader = None
        if ranks is not None:
            assert model.group is not None
            leader = Leader(ranks, model.group)
            leader.begin(Sizes(cache.num_blocks, cache.num_host_blocks, max_model_len))
        runner = PagedRunner(model, cache, max_model_len, budget, leader)
    if draft is not None:
        use_draft_model(options, *draft, runner, cache)
    if cache.num_host_blocks:
        runner.speeds = measure_speeds(runner)
    if options.drafts:
        runner.step_seconds = measure_steps(runner, options.max_running, options.drafts)
    return runner


def set_threads(options: ModelOptions) -> None:
    """As given, else one a core, of which ranks have equal shares: threads that spin for one core halve their speed."""
    threads = options.threads
    if threads is None and options.tensor_parallel > 1:
        threads = max(1, ops.num_threads() // options.tensor_parallel)
    if threads:
        torch.set_num_threads(threads)
        ops.set_num_threads(threads)


def load_draft(options: ModelOptions, target: CausalModel, max_model_len: int) -> tuple[CausalModel, int]:
    """The model that guesses for the target, and how many tokens of a sequence it can see. Its weights are taken as
    they are. Raises `ModelError`."""
    assert options.draft_model is not None
    try:
        folder = model_folder(options.draft_model)
    except ModelNotFound as error:
        raise ModelError(f"--speculate {options.speculate}: {error}.") from error
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
    """Gives the runner a draft model of this `context`, whose cache has the blocks of its own."""
    cache = dataclasses.replace(cache, dtype=cache_dtype(options, model))
    sizes = DraftSizes(context, runner.token_budget, runner.vocab_size, runner.first_host_block)
    if isinstance(runner, PagedRunner):
        runner.draft_model = DraftModel(model, cache, sizes)
        return
    most = runner.token_budget + options.max_running  # rows that the model has buffers for
    place = DraftBatches(model, options.max_running, most, context).place
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


def choose_device(name: str) -> torch.device:
    """The device named, or for "auto" a GPU that torch and the kernels can use, else the CPU. To torch AMD's are
    "cuda", too."""
    usable = torch.cuda.is_available() and cuda.available()
    if name == "cuda" and not usable:
        missing = "the kernels were not built for this GPU" if torch.cuda.is_available() else "torch sees no GPU"
        raise ModelError(f"--device cuda: {missing}; give --device cpu, or see kernels/README.md.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and usable) else "cpu")


@dataclass(frozen=True, slots=True)
class Choices:
    """What options, config.json and the names of tensors decide before any weight is read. `described` None is the
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
    folder, described, device, dtype = chosen.folder, chosen.described, chosen.device, chosen.dtype
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
        group, shards = member.join(described, rows, dtype), Shards(described, member.rank)
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
    """What quantises the checkpoint of format `form` as it is read. Raises `UnsupportedModel`."""
    if not isinstance(form, DenseFormat):
        raise UnsupportedModel(f"{folder} is quantised already; leave --quantization out.")
    if described is None:
        raise UnsupportedModel(
            f"--quantization covers the models of octavo's own decoder, not {family!r}; leave it out."
        )
    return OnlineFormat(kind, NAMES[described.family].head)


def check_block_size(block_size: int, device: torch.device) -> None:
    """Raises `ModelError` for a size that this device's kernels do not take."""
    try:
        ops.check_block_size(block_size, device)
    except ValueError as error:
        raise ModelError(f"--block-size {block_size}: {error}.") from error


def check_uniform(device: torch.device, config: ModelConfig, described: DecoderConfig | None) -> None:
    """Raises `ModelError` if the GPU cannot compute each row as if it were alone."""
    if not cuda.runs_hopper_code(device):
        raise ModelError(
            f"--deterministic needs a Hopper GPU, not {torch.cuda.get_device_name(device)}; leave it off, or give "
            "--device cpu."
        )
    if described is None:
        raise UnsupportedModel(
            f"--deterministic covers the models of octavo's own decoder on a GPU, not {config.model_type!r}; leave it "
            "off, or give --device cpu."
        )


def check_ranks(ranks: int, device: torch.device, described: DecoderConfig | None, family: str) -> None:
    """Raises `ModelError` if a model cannot be computed by so many ranks on this device."""
    if described is None:
        raise UnsupportedModel(
            f"--tensor-parallel covers the models of octavo's own decoder, not {family!r}, which runs on its "
            "transformers code; leave it out."
        )
    check_divisible(described, ranks)
    if device.type == "cuda":
        if (gpus := torch.cuda.device_count()) < ranks:
            raise ModelError(f"--tensor-parallel {ranks} needs as many GPUs, but there are {gpus}; give fewer ranks.")
        raise ModelError("--tensor-parallel runs on CPUs; on GPUs start several workers: give --replicas instead.")


def weight_source(options: ModelOptions, described: DecoderConfig, folder: Path, device: torch.device) -> WeightSource:
    if options.load_format == "dummy":
        return RandomWeights(options.seed, 1.0 - described.norm_offset, device)
    return (StreamedCheckpoint if device.type == "cuda" else Checkpoint).open(folder)


def read_config(folder: Path) -> ModelConfig:
    """As transformers reads it."""
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
    """`asked`, by default the model's own, which is the most."""
    longest: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    wanted = asked or longest
    if wanted is None:
        raise ModelError(f"{config.model_type!r} names no longest context; give --max-model-len.")
    if longest is not None and wanted > longest:
        raise ModelError(f"max_model_len {wanted} is more than the model's context of {longest} tokens.")
    return wanted


def choose_dtype(name: str, config: ModelConfig) -> torch.dtype:
    """The dtype named, or for "auto" the config's, else float32."""
    stated = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None) or torch.float32
    name = str(stated).removeprefix("torch.") if name == "auto" else name
    if name not in DTYPES:
        raise UnsupportedModel(f"dtype {name} is not supported; give --dtype bfloat16.")
    return DTYPES[name]
