"""What a service submits and what it gets back.

These models are the contract between clients, the gateway and the workers. They hold no behaviour beyond
validation: anything accepted here can be stored, sent and resumed as it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

MAX_BODY_BYTES = 1 << 20
MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 300
MAX_TOP_LOGPROBS = 20
MAX_SEQUENCES = 64
MAX_PINS = 64  # of a model: every worker reports on all of them in each heartbeat

Priority = Literal["high", "normal", "batch"]
FinishReason = Literal["stop", "length", "abort"]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31, strict=True)]
# Of a sequence one error is enough: a request of a megabyte could have a million.
TokenIds = Annotated[tuple[TokenId, ...], Field(fail_fast=True)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[\w.:/@+-]{1,200}$")]
Tenant = Annotated[str, StringConstraints(pattern=r"^[\w.@-]{1,64}$")]
PinName = Annotated[str, StringConstraints(pattern=r"^[\w.@-]{1,64}$")]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class Frozen(BaseModel):
    """An immutable message that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SamplingParams(Frozen):
    """How tokens are chosen and when a sequence ends.

    `max_tokens=None` generates until the context is full. `temperature=0` is greedy. `top_k=0`, `top_p=1` and
    `min_p=0` switch the filters off; they apply in the order top-k, top-p, min-p. Without a `seed` the job gets a
    random one at submission, so that a takeover continues the same random stream.

    `best_of` samples that many sequences and delivers the `n` with the best mean log-probability, the best first.
    `beam_width` searches for the most likely sequences instead of sampling and delivers the `n` best; a sequence scores
    the sum of its log-probabilities over (its length ** `length_penalty`), and `early_stopping` says when the search
    ends: True with `beam_width` finished sequences, False when a better one is unlikely, "never" when it is impossible.
    Both deliver everything at the end, and a takeover starts them over.
    """

    n: int = Field(1, ge=1, le=MAX_SEQUENCES)
    best_of: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    beam_width: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    length_penalty: float = Field(1.0, ge=-10.0, le=10.0)
    early_stopping: bool | Literal["never"] = False
    max_tokens: int | None = Field(256, ge=0, le=1 << 24)
    min_tokens: int = Field(0, ge=0, le=1 << 24)
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_k: int = Field(0, ge=0, lt=1 << 31)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(1.0, gt=0.0, le=10.0)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100.0, le=100.0)]] = Field(
        default_factory=dict, max_length=MAX_LOGIT_BIAS
    )
    stop: tuple[StopString, ...] = Field((), max_length=MAX_STOP_STRINGS, fail_fast=True)
    stop_token_ids: TokenIds = Field((), max_length=MAX_STOP_STRINGS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is greater than max_tokens ({self.max_tokens})")
        return self

    @model_validator(mode="after")
    def _sampling_or_search(self) -> Self:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) is less than n ({self.n})")
        if self.beam_width is None:
            if self.length_penalty != 1.0 or self.early_stopping is not False:
                raise ValueError("length_penalty and early_stopping belong to a beam search: give beam_width as well")
            return self
        if self.beam_width < self.n:
            raise ValueError(f"beam_width ({self.beam_width}) is less than n ({self.n})")
        if refused := [name for name in _NOT_WITH_BEAMS if getattr(self, name) != _default(name)]:
            raise ValueError(f"a beam search takes no {', '.join(refused)}: leave that out")
        return self

    @property
    def width(self) -> int:
        """Sequences that run at the same time."""
        return self.beam_width or self.best_of or self.n

    @property
    def is_held_back(self) -> bool:
        """Nothing is delivered before everything is generated: only then is it known which sequences are the best."""
        return self.beam_width is not None or (self.best_of or 0) > self.n


_NOT_WITH_BEAMS = ("best_of", "temperature", "top_k", "top_p", "min_p", "stop", "logprobs")


def _default(name: str) -> Any:
    return SamplingParams.model_fields[name].default


class Message(Frozen):
    """One turn of a conversation, rendered by the model's chat template on the worker."""

    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: str


class JobRequest(Frozen):
    """One generation job: exactly one of `prompt` (text or token ids) and `messages`.

    `timeout_s` bounds the whole job, `queue_timeout_s` the wait for a worker; a job past either ends as `expired`. The
    priority `batch` is for work of which nobody waits for a single job: it comes after all other, and a worker begins
    with what has the highest `max_tokens`.
    """

    model: ModelName
    prompt: str | TokenIds | None = None
    messages: Annotated[tuple[Message, ...], Field(fail_fast=True)] | None = None
    sampling: SamplingParams = SamplingParams()
    priority: Priority = "normal"
    add_special_tokens: bool = True
    timeout_s: float | None = Field(None, gt=0, le=30 * 86400)
    queue_timeout_s: float | None = Field(None, gt=0, le=30 * 86400)
    metadata: dict[
        Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]
    ] = Field(default_factory=dict, max_length=16)

    @model_validator(mode="after")
    def _one_kind_of_prompt(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of prompt and messages")
        if self.prompt is not None and len(self.prompt) == 0:
            raise ValueError("prompt is empty: give at least one character or token id")
        if self.messages is not None and len(self.messages) == 0:
            raise ValueError("messages is empty: give at least one message")
        return self


class JobStatus(StrEnum):
    """The life of a job. Everything but `QUEUED` and `RUNNING` is terminal and never changes again."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class JobError(Frozen):
    """Why a job failed. `code` is stable and machine-readable, `message` says what to do next."""

    code: str
    message: str
    param: str | None = None


class Usage(Frozen):
    """Tokens of a finished job. `completion_tokens` equals the tokens stored in its stream.

    `cached_tokens` of the prompt were found in the prefix cache. Of what preemptions took from it, `recomputed_tokens`
    were computed again and `restored_tokens` came back from CPU memory.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    restored_tokens: int = 0


class TopLogprob(Frozen):
    """One alternative: its id, its bytes (a token may be part of a character) and its natural log-probability."""

    token_id: int
    token: bytes
    logprob: float


class TokenLogprob(Frozen):
    """The chosen token and the most likely alternatives, best first. `logprob` is None for a prompt's first token."""

    token_id: int
    token: bytes
    logprob: float | None
    top: tuple[TopLogprob, ...] = ()


class Chunk(Frozen):
    """Consecutive tokens of one sequence, as stored: one text piece a token, so that a reader may cut anywhere.

    `texts[i]` is the text that became certain with token i; it is empty while a character or a possible stop
    string is incomplete.
    """

    index: int = 0
    token_ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def after(self, skip: int) -> Chunk:
        """The same chunk without its first `skip` tokens."""
        if skip <= 0:
            return self
        logprobs = None if self.logprobs is None else self.logprobs[skip:]
        return self.model_copy(
            update={"token_ids": self.token_ids[skip:], "texts": self.texts[skip:], "logprobs": logprobs}
        )


class Terminal(Frozen):
    """The last entry of every stream."""

    status: JobStatus
    usage: Usage = Usage()
    error: JobError | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class Progress(Frozen):
    """How far a beam search is: its best sequence so far, of `tokens` tokens, which may yet become another one, and how
    many are `finished`. `attempt` grows when another worker starts the search over."""

    attempt: int
    tokens: int
    score: float
    finished: int
    text: str


class Event(Frozen):
    """One step of a stream: tokens, or its end. Or the `progress` of a beam search, which is no part of the stream: it
    changes no offset, is not stored, and may be missed.

    `offset` counts the tokens of all sequences up to and including this event; resuming with `after=offset`
    continues with the next token. `end` is set on the last event only.
    """

    offset: int
    chunk: Chunk | None = None
    end: Terminal | None = None
    progress: Progress | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.chunk.token_ids if self.chunk else ()

    @property
    def text(self) -> str:
        return self.chunk.text if self.chunk else ""

    @property
    def index(self) -> int:
        return self.chunk.index if self.chunk else 0

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.chunk.finish_reason if self.chunk else None


class DeadLetter(Frozen):
    """A job that was given up: `reason` is dead_lettered (three workers crashed) or job_damaged. `at` is in seconds
    since the epoch, by the server's clock."""

    job_id: str
    reason: str
    at: float
    worker: str | None = None
    attempts: int = 0


class SequenceResult(Frozen):
    """The whole of one generated sequence."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None = None


class JobInfo(Frozen):
    """Where a job stands now. Times are seconds since the epoch, by the server's clock. `usage` once a worker has
    ended it. `crashes` of workers that ran it, since it last got on by 64 tokens."""

    id: str
    status: JobStatus
    model: str
    tenant: str
    priority: Priority
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    tokens: int = 0
    attempts: int = 0
    crashes: int = 0
    worker: str | None = None
    error: JobError | None = None
    metadata: dict[str, str] = {}
    usage: Usage | None = None
    progress: Progress | None = None


class Result(Frozen):
    """A finished job with all its sequences."""

    id: str
    status: JobStatus
    model: str
    sequences: tuple[SequenceResult, ...]
    usage: Usage
    error: JobError | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        return self.sequences[0].text if self.sequences else ""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.sequences[0].token_ids if self.sequences else ()


class ModelCard(Frozen):
    """A model that some worker serves or has served, as registered at the worker's start."""

    name: str
    max_model_len: int
    vocab_size: int
    has_tokenizer: bool
    created_at: float


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
    """What has become of a pin on one worker: `tokens` of it, whole blocks, are kept or being computed, or it is
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
        """Whether all workers have pinned or refused it."""
        return all(outcome is not None and outcome.state != "pinning" for outcome in self.workers.values())


class WorkerInfo(Frozen):
    """A worker's latest heartbeat; it vanishes with the worker. `numerics` says what decides how it rounds; it is empty
    if that is not known. Workers of one model that say the same give the same tokens."""

    id: str
    model: str
    host: str
    pid: int
    started_at: float
    stats: dict[str, float | int | str] = {}
    pins: dict[str, PinOutcome] = {}
    numerics: str = ""


CELL_STATES = {".": "free", "c": "cached", "q": "quarantined", "u": "used", "s": "shared", "p": "pinned"}
"""What the letters of a block map stand for, from the least to the most telling."""


class WorkerMemory(Frozen):
    """A worker's KV memory at one moment. `at` is in seconds since the epoch, by the worker's clock.

    `blocks` counts blocks by state: free, used, cached and quarantined make up `total`; shared and pinned are among the
    used. `host` counts those in CPU memory: total, used (of those cold: read in place), free. `sharing` says of each
    reference count from 2 on how many blocks have it. `cells` has a letter of `CELL_STATES` for each of some hundred
    runs of neighbouring blocks, the most telling state among them, and `cell_references` the largest reference count in
    each; `host_cells` likewise.

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
