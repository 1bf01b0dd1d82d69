"""Options of an engine process, which it gets at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

GIB = 1 << 30
TOKEN_BUDGET = {"cpu": 512, "cuda": 8192}
"""Prompt tokens of one step by device: on a few CPU cores already 512 delay a running sequence's next token noticeably,
a GPU is only busy with thousands."""

MOST_DRAFTED = 512
"""Samples of a step with drafts: with more rows, a GPU computes for longer than it reads weights, and none can pay."""


DRAFT_MODEL = "draft:"
"""Prefix of a draft model's name."""
EAGLE_HEAD = "eagle:"
"""Prefix of the name of an EAGLE-3 head of the model."""

LongRope = Literal["auto", "short", "long"]
ExpertsOfRanks = Literal["auto", "split", "whole"]
OnlineQuantization = Literal["fp8", "int8", "int4"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its flag, its variable and its line in the documentation are made of this.

    `flag` is the name that a command gives it, where that is another; `unit` how many of the option's make one of the
    flag's.
    """

    text: str = field(kw_only=False)
    flag: str | None = None
    unit: int = 1
    gt: float | None = None
    ge: float | None = None
    le: float | None = None


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which model to run and how much of the machine it may use: every option of an engine, once.

    Without `num_blocks` the KV cache takes `kv_cache_bytes`, without either the model decides from the memory that is
    free. With `overlap` steps are launched one ahead where the device computes asynchronously. `host_cache_bytes` of
    CPU memory hold preempted sequences and what is left of those longer than the cache. `threads` are those of each
    rank. `deterministic` makes a GPU compute each sequence with the same bits whatever else is in the batch and however
    its prompt is cut; on a CPU that is always so.
    """

    model: Annotated[str, Option("Folder or Hugging Face id of the model, or `demo` for the bundled one.")] = "demo"
    load_format: Annotated[
        Literal["auto", "dummy"],
        Option("`dummy` fills the weights with random numbers: a config.json is enough."),
    ] = "auto"
    quantization: Annotated[
        Literal["auto", "fp8", "int8", "int4"],
        Option("Store the matrices of a 16-bit checkpoint in 8 or 4 bits; `auto`: as the checkpoint has them."),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Option("Where the model runs.")] = "auto"
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Option("Type of weights and cache.")] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "int8", "fp8"],
        Option("Type of the KV cache; 8 bits hold nearly twice the tokens. `auto`: as --dtype."),
    ] = "auto"
    max_model_len: Annotated[int | None, Option("Longest prompt and answer; by default the model's own.", gt=0)] = None
    num_blocks: Annotated[
        int | None, Option("Blocks of --block-size tokens in the KV cache; goes before --kv-memory.", gt=0)
    ] = None
    block_size: Annotated[
        int, Option("Tokens of a block of the KV cache: 4, 8 (on CPUs), 16, 32, 64 or 128.", gt=0)
    ] = 16
    kv_cache_bytes: Annotated[
        int | None,
        Option("GiB of the KV cache; by default what is free.", flag="kv_memory", unit=GIB, gt=0),
    ] = None
    state_slots: Annotated[
        int | None,
        Option(
            "States of sequences that models with recurrent layers keep, running ones and snapshots; by default as "
            "many as half of the cache's memory holds: two for each of --max-running, and snapshots.",
            gt=1,
        ),
    ] = None
    gpu_memory: Annotated[
        float, Option("Share of a GPU's memory to use; the KV cache takes what the model leaves.", gt=0, le=1)
    ] = 0.9
    cuda_graphs: Annotated[bool, Option("Replay decodes and short prompts as CUDA graphs; off to find faults.")] = True
    deterministic: Annotated[
        bool,
        Option("Same tokens on a GPU in any batch, after preemption and takeover; slower. CPUs always do so."),
    ] = False
    host_cache_bytes: Annotated[
        int,
        Option(
            "GiB of CPU memory for preempted sequences and for those longer than the cache.",
            flag="swap_memory",
            unit=GIB,
            ge=0,
        ),
    ] = 0
    preemption: Annotated[
        Literal["auto", "swap", "recompute"],
        Option("What becomes of a preempted sequence's memory; `auto` takes what is cheaper."),
    ] = "auto"
    state_interval: Annotated[
        int,
        Option(
            "Tokens of a prompt between states that the prefix cache keeps, of a model that has states; 0: at ends of "
            "prompts and answers, and where prompts part.",
            ge=0,
        ),
    ] = 0
    scheduling: Annotated[
        Literal["priority", "fcfs"],
        Option("Order inside a worker: class, deadline, arrival; `fcfs` is arrival alone."),
    ] = "priority"
    speculate: Annotated[
        str,
        Option(
            "Guess tokens and verify several a step, by what the text said before: `ngram`, or `suffix`: earlier "
            "answers of the tenant, too; or by a smaller model, `draft:FOLDER`, or an EAGLE-3 head of this model, "
            "`eagle:FOLDER`. Answers are the same."
        ),
    ] = "off"
    speculate_most: Annotated[int, Option("Most guessed tokens of a sequence in one step.", gt=0)] = 7
    longrope: Annotated[
        LongRope,
        Option("Factors of LongRoPE for all sequences; `auto`: long if the context is more than the original one."),
    ] = "auto"
    max_running: Annotated[int, Option("Most sequences in the running batch.", gt=0)] = 256
    token_budget: Annotated[
        int | None, Option("Most prompt tokens in one step; by default 512 on a CPU, 8192 on a GPU.", gt=0)
    ] = None
    overlap: Annotated[
        bool, Option("Launch a step while the one before it runs; on CUDA only, a CPU gains nothing.")
    ] = True
    tensor_parallel: Annotated[
        int,
        Option(
            "Processes that share the model's matrices and compute together, each on a GPU or with a share of the "
            "cores.",
            ge=1,
            le=16,
        ),
    ] = 1
    experts: Annotated[
        ExpertsOfRanks,
        Option(
            "What ranks have of a mixture: `split`: a part of each expert; `whole`: some experts each; `auto`: these "
            "where the columns of an expert do not divide by the ranks."
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        Option("CPU threads of the engine, or of each of its ranks; by default one a core, shared by all.", gt=0),
    ] = None
    seed: Annotated[int, Option("Seed of random weights (--load-format dummy); jobs have their own seeds.")] = 0
    check_integrity: Annotated[
        bool, Option("Verify all block accounts whenever the engine falls idle; a wrong one ends it.")
    ] = False

    @classmethod
    def of_flags(cls, model: str, flags: Mapping[str, Any]) -> ModelOptions:
        """From the flags of a command; those that are no option are left out. `model` replaces the flag of that
        name."""
        named = {}
        for name, (_, option) in options_of(cls).items():
            value = flags.get(option.flag or name)
            if value is not None:
                named[name] = value if option.unit == 1 else round(value * option.unit)
        return cls(**(named | {"model": model}))

    @property
    def draft_model(self) -> str | None:
        """The model that guesses tokens: a folder, a hub id or the name of a bundled one."""
        return self.speculate.removeprefix(DRAFT_MODEL) if self.speculate.startswith(DRAFT_MODEL) else None

    @property
    def eagle_head(self) -> str | None:
        """The EAGLE-3 head that guesses tokens: a folder or a hub id."""
        return self.speculate.removeprefix(EAGLE_HEAD) if self.speculate.startswith(EAGLE_HEAD) else None

    @property
    def runner_guesses(self) -> bool:
        """True if the runner makes the drafts: with a draft model or a head."""
        return self.draft_model is not None or self.eagle_head is not None

    @property
    def drafts(self) -> int:
        """Most drafts of a sequence in a step."""
        return 0 if self.speculate == "off" else self.speculate_most

    @property
    def most_samples(self) -> int:
        """Most samples of a step: those of all sequences, each with its drafts as far as these may pay."""
        return max(self.max_running, min(self.max_running * (1 + self.drafts), MOST_DRAFTED))

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> ModelOptions:
        """Raises `msgspec.ValidationError` on unknown values or wrong types."""
        return msgspec.json.decode(text, type=cls)


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker behaves towards the queue and on its host: every option that is not its engine's, once."""

    engine: ModelOptions
    redis_url: Annotated[
        str,
        Option("Address of the Redis server; by default REDIS_URL, the server of `octavo up`, or localhost:6379."),
    ]
    served_name: Annotated[
        str | None,
        Option(
            "Name that jobs ask for; by default the last part of --model. Others behind commas are aliases, which no "
            "other model may have."
        ),
    ] = None
    generation_config: Annotated[
        Literal["auto", "none"],
        Option(
            "Sampling where a request says nothing: `auto` is that of the model's generation_config.json, `none` "
            "octavo's own."
        ),
    ] = "auto"
    replicas: Annotated[
        int,
        Option("Workers to run under this command, each on GPUs of its own, or with a share of the cores.", ge=1),
    ] = 1
    devices: Annotated[
        str | None,
        Option("GPUs to use, such as `0,1`: a worker on each, or on each --tensor-parallel of them."),
    ] = None
    lease: Annotated[float, Option("Seconds after which a silent worker loses its jobs.", ge=0.2, le=300)] = 4.0
    grace: Annotated[float, Option("Seconds that running jobs get to finish after SIGTERM.", ge=0)] = 20.0
    watchdog: Annotated[float, Option("Seconds after which an engine with work but no output is killed.", gt=0)] = 60.0
    metrics_port: Annotated[
        int, Option("Port for Prometheus and probes, one more for each further replica; 0: none.", ge=0, le=65535)
    ] = 0
    metrics_host: Annotated[str, Option("Address of that port.")] = "127.0.0.1"
    metrics_names: Annotated[
        Literal["octavo", "vllm"],
        Option("`vllm` adds the names that dashboards and routers made for vLLM ask for."),
    ] = "octavo"
    trace_content: Annotated[
        bool, Option("Put prompts and answers into spans, where OpenTelemetry's variables ask for traces.")
    ] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Option("How much is logged.")] = "info"
    log_format: Annotated[
        Literal["auto", "text", "json"],
        Option("`text`, `json`, or `auto`: text on a terminal, JSON elsewhere."),
    ] = "auto"

    def __repr__(self) -> str:
        """Without the address, which may hold a password."""
        return f"WorkerOptions(engine={self.engine!r})"


@cache
def options_of(table: type[msgspec.Struct]) -> dict[str, tuple[Any, Option]]:
    """Type and description of each option of a table, by its name; fields without a description are no options."""
    found = {}
    for name, hint in get_type_hints(table, include_extras=True).items():
        option = next((data for data in getattr(hint, "__metadata__", ()) if isinstance(data, Option)), None)
        if option is not None:
            found[name] = hint.__origin__, option
    return found
