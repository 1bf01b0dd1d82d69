"""What an engine process is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

GIB = 1 << 30
TOKEN_BUDGET = {"cpu": 512, "cuda": 8192}
"""Prompt tokens of one step by device: on a few CPU cores already 512 delay a running sequence's next token noticeably,
a GPU is only busy with thousands."""

MOST_DRAFTED = 512
"""Samples of a step with drafts: with more rows, a GPU computes for longer than it reads weights, and none can pay."""


DRAFT_MODEL = "draft:"
"""What the name of a model begins with that guesses tokens."""
EAGLE_HEAD = "eagle:"
"""What the name of an EAGLE-3 head of the model begins with."""

LongRope = Literal["auto", "short", "long"]
OnlineQuantization = Literal["fp8", "int8", "int4"]


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which model to run and how much of the machine it may use.

    `model` is a folder or a hub id. Without `num_blocks` the KV cache takes `kv_cache_bytes`, without either the model
    decides from the memory that is free; on a GPU `gpu_memory` is the share of all its memory that may be in use.
    `max_model_len` None is the model's own context. `longrope` are the factors of a model with LongRoPE, by default
    the long ones if `max_model_len` is more than its original context. `token_budget` bounds the prompts' tokens of
    one step (None: as suits the device), `max_running` the sequences in it, each of which adds a token if it
    decodes. With `overlap` steps are launched one ahead where the device computes asynchronously; with
    `cuda_graphs` decode steps are replayed as one. `host_cache_bytes` of CPU memory hold preempted sequences and
    what is left of those longer than the cache; `preemption` "swap" and "recompute" overrule what is cheaper;
    `scheduling` is the policy of the engine's queue. `speculate` names what guesses tokens ("off": nothing does), of
    which a step verifies up to `speculate_most` for each sequence; "draft:" and a model is a smaller one, "eagle:" and
    a folder an EAGLE-3 head of this one. `threads` None leaves the choice to torch. `kv_dtype` "auto" keeps K and V in
    the model's dtype. `tensor_parallel` ranks share each of the model's matrices, and `threads` are those of each.
    `quantization` turns a checkpoint in floating point into that form as it is read; "auto" takes the weights as they
    are. `seed` makes dummy weights reproducible. `check_integrity` verifies all block accounting whenever the engine
    falls idle. `deterministic` makes a GPU compute each sequence with the same bits whatever else is in the batch and
    however its prompt is cut; on a CPU that is always so.
    """

    model: str
    load_format: Literal["auto", "dummy"] = "auto"
    quantization: Literal["auto"] | OnlineQuantization = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    kv_dtype: Literal["auto", "int8", "fp8"] = "auto"
    kv_cache_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    longrope: LongRope = "auto"
    token_budget: int | None = None
    max_running: int = 256
    overlap: bool = True
    gpu_memory: float = 0.9
    cuda_graphs: bool = True
    host_cache_bytes: int = 0
    preemption: Literal["auto", "swap", "recompute"] = "auto"
    scheduling: Literal["priority", "fcfs"] = "priority"
    speculate: str = "off"
    speculate_most: int = 7
    threads: int | None = None
    tensor_parallel: int = 1
    seed: int = 0
    check_integrity: bool = False
    deterministic: bool = False

    @classmethod
    def of_flags(cls, model: str, flags: Mapping[str, Any]) -> ModelOptions:
        """From a worker's flags, which give memory in GiB; those that are no option are left out. `model` replaces the
        flag of that name."""
        named = {name: flags[name] for name in cls.__struct_fields__ if name in flags}
        kv_memory, swap_memory = flags.get("kv_memory"), flags.get("swap_memory", 0.0)
        kv_cache_bytes = None if kv_memory is None else round(kv_memory * GIB)
        sizes = {"kv_cache_bytes": kv_cache_bytes, "host_cache_bytes": round(swap_memory * GIB)}
        return cls(**(named | sizes | {"model": model}))

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
        """Whether drafts are the runner's: of a draft model or of a head."""
        return self.draft_model is not None or self.eagle_head is not None

    @property
    def drafts(self) -> int:
        """Of each sequence in a step, at most."""
        return 0 if self.speculate == "off" else self.speculate_most

    @property
    def most_samples(self) -> int:
        """That a step has room for: those of all sequences, each with its drafts as far as these may pay."""
        return max(self.max_running, min(self.max_running * (1 + self.drafts), MOST_DRAFTED))

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> ModelOptions:
        """Raises `msgspec.ValidationError` on unknown values or wrong types."""
        return msgspec.json.decode(text, type=cls)
