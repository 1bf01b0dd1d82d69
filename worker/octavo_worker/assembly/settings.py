"""Everything a worker can be told: `OCTAVO_*` in the environment, the same names as flags of `octavo worker`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from octavo.queue.connection import default_url

PROPOSERS = ("off", "ngram", "suffix")
NAMED = ("draft", "eagle")
"""Ways to guess by what lies in a folder."""


class WorkerSettings(BaseSettings):
    """One worker: which model, how much of the machine, and how it behaves towards the queue."""

    model_config = SettingsConfigDict(
        env_prefix="OCTAVO_", frozen=True, protected_namespaces=(), allow_inf_nan=False, env_ignore_empty=True
    )

    redis_url: str = Field(
        default_factory=default_url,
        repr=False,  # it may hold a password
        description="Address of the Redis server; by default REDIS_URL, the server of `octavo up`, or localhost:6379.",
    )
    model: str = Field("demo", description="Folder or Hugging Face id of the model, or `demo` for the bundled one.")
    served_name: str | None = Field(None, description="Name that jobs ask for; by default the last part of --model.")
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="`dummy` fills the weights with random numbers: a config.json is enough."
    )
    quantization: Literal["auto", "fp8", "int8", "int4"] = Field(
        "auto",
        description="Store the matrices of a 16-bit checkpoint in 8 or 4 bits; `auto`: as the checkpoint has them.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the model runs.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="Type of weights and cache.")
    kv_dtype: Literal["auto", "int8", "fp8"] = Field(
        "auto", description="Type of the KV cache; 8 bits hold nearly twice the tokens. `auto`: as --dtype."
    )
    max_model_len: int | None = Field(None, gt=0, description="Longest prompt and answer; by default the model's own.")
    num_blocks: int | None = Field(
        None, gt=0, description="Blocks of --block-size tokens in the KV cache; goes before --kv-memory."
    )
    block_size: int = Field(
        16, gt=0, description="Tokens of a block of the KV cache: 4, 8 (on CPUs), 16, 32, 64 or 128."
    )
    kv_memory: float | None = Field(None, gt=0, description="GiB of the KV cache; by default what is free.")
    gpu_memory: float = Field(
        0.9, gt=0, le=1, description="Share of a GPU's memory to use; the KV cache takes what the model leaves."
    )
    cuda_graphs: bool = Field(True, description="Replay decodes and short prompts as CUDA graphs; off to find faults.")
    deterministic: bool = Field(
        False,
        description="Same tokens on a GPU in any batch, after preemption and takeover; slower. CPUs always do so.",
    )
    swap_memory: float = Field(
        0.0,
        ge=0,
        description="GiB of CPU memory for preempted sequences and for those longer than the cache.",
    )
    preemption: Literal["auto", "swap", "recompute"] = Field(
        "auto", description="What becomes of a preempted sequence's memory; `auto` takes what is cheaper."
    )
    scheduling: Literal["priority", "fcfs"] = Field(
        "priority", description="Order inside a worker: class, deadline, arrival; `fcfs` is arrival alone."
    )
    speculate: str = Field(
        "off",
        description="Guess tokens and verify several a step, by what the text said before: `ngram`, or `suffix`: "
        "earlier answers of the tenant, too; or by a smaller model, `draft:FOLDER`, or an EAGLE-3 head "
        "of this model, `eagle:FOLDER`. Answers are the same.",
    )
    speculate_most: int = Field(7, gt=0, description="Most guessed tokens of a sequence in one step.")
    longrope: Literal["auto", "short", "long"] = Field(
        "auto",
        description="Factors of LongRoPE for all sequences; `auto`: long if the context is more than the original one.",
    )
    max_running: int = Field(256, gt=0, description="Most sequences in the running batch.")
    token_budget: int | None = Field(
        None,
        gt=0,
        description="Most prompt tokens in one step; by default 512 on a CPU, 8192 on a GPU.",
    )
    overlap: bool = Field(
        True,
        description="Launch a step while the one before it runs; on CUDA only, a CPU gains nothing.",
    )
    replicas: int = Field(
        1, ge=1, description="Workers to run under this command, each on GPUs of its own, or with a share of the cores."
    )
    devices: str | None = Field(
        None, description="GPUs to use, such as `0,1`: a worker on each, or on each --tensor-parallel of them."
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        le=16,
        description="Processes that share the model's matrices and compute together, each on a GPU or with a share of "
        "the cores.",
    )
    threads: int | None = Field(
        None,
        gt=0,
        description="CPU threads of the engine, or of each of its ranks; by default one a core, shared by all.",
    )
    seed: int = Field(0, description="Seed of random weights (--load-format dummy); jobs have their own seeds.")
    lease: float = Field(4.0, ge=0.2, le=300, description="Seconds after which a silent worker loses its jobs.")
    grace: float = Field(20.0, ge=0, description="Seconds that running jobs get to finish after SIGTERM.")
    watchdog: float = Field(60.0, gt=0, description="Seconds after which an engine with work but no output is killed.")
    check_integrity: bool = Field(
        False, description="Verify all block accounts whenever the engine falls idle; a wrong one ends it."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much is logged.")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="`text`, `json`, or `auto`: text on a terminal, JSON elsewhere."
    )

    @field_validator("speculate")
    @classmethod
    def _is_known(cls, value: str) -> str:
        kind, _, named = value.partition(":")
        if value in PROPOSERS or (kind in NAMED and named):
            return value
        if kind == "mtp":
            raise ValueError(
                "mtp is for checkpoints with layers that predict several tokens, which no model family of octavo's own "
                "decoder has; give eagle:FOLDER, draft:FOLDER or suffix"
            )
        known = ", ".join(PROPOSERS)
        raise ValueError(
            f"{value!r} is no way to guess tokens: use {known}, draft:FOLDER, a smaller model, or eagle:FOLDER, an "
            "EAGLE-3 head"
        )
