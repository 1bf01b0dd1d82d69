"""Workers as they describe themselves: the model they serve, their state, their memory, and what they keep in it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from octavo.terms.fields import Frozen, ModelName, PinName, Tenant, TokenIds
from octavo.terms.sampling import SamplingDefaults
from octavo.terms.stats import WorkerStats


class ModelCard(Frozen):
    """A model that some worker serves or has served, as registered at the worker's start. `quantization` names the
    schemes of quantised weights; it is empty where none is. `sampling` holds where a request says nothing of how its
    tokens are chosen. `aliases` are the other names that live workers serve it under. `switches` are those variables of
    thinking that its chat template reads, None where that is not known."""

    name: str
    max_model_len: int
    vocab_size: int
    has_tokenizer: bool
    created_at: float
    quantization: str = ""
    sampling: SamplingDefaults = SamplingDefaults()
    aliases: tuple[str, ...] = ()
    switches: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that jobs may ask for, its own first."""
        return (self.name, *self.aliases)


class Traits(BaseModel):
    """Traits of a model that its card on the wire lacks; those of later versions are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sampling: SamplingDefaults = SamplingDefaults()
    switches: tuple[str, ...] | None = None


class PrefixPin(Frozen):
    """A prefix that every worker of a model keeps in its KV memory for the jobs of one tenant.

    It is the system message of chat requests (`system`, rendered by the worker's chat template), or the beginning of
    prompts (`prompt`, text or token ids).
    """

    name: PinName
    model: ModelName
    tenant: Tenant
    system: str | None = None
    prompt: str | TokenIds | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.system is None) == (self.prompt is None):
            raise ValueError("give exactly one of system and prompt")
        if not (self.system or self.prompt):
            raise ValueError("the prefix is empty: give at least one character or token id")
        return self

    @property
    def key(self) -> str:
        """Its name among all pins of the model."""
        return f"{self.tenant}:{self.name}"


class PinOutcome(Frozen):
    """State of a pin on one worker: `tokens` of it, whole blocks, are kept or being computed, or it is
    refused and `message` says why. `version` tells which prefix of that name this is about."""

    state: Literal["pinning", "pinned", "refused"]
    version: str
    tokens: int = 0
    message: str = ""


class PinnedPrefix(Frozen):
    """A pin, and what each live worker of its model makes of it; None: it has not said anything yet."""

    pin: PrefixPin
    workers: dict[str, PinOutcome | None]

    @property
    def is_settled(self) -> bool:
        """True if all workers have pinned or refused it."""
        return all(outcome is not None and outcome.state != "pinning" for outcome in self.workers.values())


DIGEST_SHOWN = 12
"""Characters of a digest that people get to see."""


class WorkerInfo(Frozen):
    """A worker's latest heartbeat; it vanishes with the worker. `numerics` says what decides how it rounds; it is empty
    if that is not known. Workers of one model that say the same give the same tokens. `digest` is of all that decides
    its answers: only workers of equal digests go on with each other's jobs."""

    id: str
    model: str
    host: str
    pid: int
    started_at: float
    stats: WorkerStats = Field(default_factory=WorkerStats)
    pins: dict[str, PinOutcome] = Field(default_factory=dict)
    numerics: str = ""
    digest: str = ""


CELL_STATES = {
    "-": "elsewhere", ".": "free", "c": "cached", "q": "quarantined", "u": "used", "s": "shared", "p": "pinned",
}  # fmt: skip
"""Cell states by the letters of a block map, from the least to the most telling. Elsewhere: the memory of these blocks
is with the other group."""


class WorkerMemory(Frozen):
    """A worker's KV memory at one moment. `at` is in seconds since the epoch, by the worker's clock.

    `blocks` counts blocks by state: free, used, cached and quarantined make up `total`; shared and pinned are among the
    used. `host` counts those in CPU memory: total, used (of those cold: read in place), free. `sharing` says of each
    reference count from 2 on how many blocks have it. `cells` has a letter of `CELL_STATES` for each of some hundred
    runs of neighbouring blocks, the most telling state among them, and `cell_references` the largest reference count in
    each; `host_cells` likewise. `states` counts slots for the states of recurrent layers as `blocks` does, with `host`
    and `host_free`; `state_cells` and `state_references` are their map. `windows`, `window_cells` and
    `window_references` are the same of blocks of layers with a window. All are empty where a model has none.

    Since the worker's engine began: of the `prompt` tokens asked for `cached` were found, and of those that preemptions
    took `recomputed` were computed again and `restored` came back from CPU memory. `preemptions` counts sequences by
    what became of their memory: swapped_out, or recomputed because that was cheaper anyway (recompute_cheaper), cheaper
    as the prefix cache or others keep part of it (recompute_cached), the host's pool was full (recompute_host_full),
    nothing is swapped here (recompute_no_swap) or there was nothing to swap (recompute_no_choice).
    """

    worker: str
    model: str
    at: float
    block_size: int
    kv_dtype: str
    blocks: dict[str, int]
    host: dict[str, int]
    sharing: tuple[tuple[int, int], ...]
    cells: str
    cell_references: tuple[int, ...]
    host_cells: str
    tokens: dict[str, int]
    preemptions: dict[str, int]
    states: dict[str, int] = Field(default_factory=dict)
    state_cells: str = ""
    state_references: tuple[int, ...] = ()
    windows: dict[str, int] = Field(default_factory=dict)
    window_cells: str = ""
    window_references: tuple[int, ...] = ()
