"""Messages between the agent and the engine: the only thing that the two processes share.

The agent owns text and Redis, the engine owns tokens and memory. Every message is one of the structs below and
travels over a socket pair as a length-prefixed, tagged msgpack array (`octavo_worker.contract.channel`). They behave
like dataclasses with slots; `msgspec.structs.asdict` and `replace` stand in for those of `dataclasses`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Literal

import msgspec

from octavo.terms.stats import EngineStats as EngineStats  # part of the socket's messages
from octavo.terms.structured import Grammar as Grammar  # likewise

if TYPE_CHECKING:
    Words = array[int]
else:
    Words = array  # takes no parameters at run time

PRIORITIES = HIGH, NORMAL, BATCH = 0, 1, 2
"""The classes of requests, the first before the others. A single job of `BATCH` is not awaited."""


class Message(msgspec.Struct, array_like=True, tag=True):
    """Base of everything that crosses the socket."""


class SequenceInput(Message):
    """One sequence to generate. `tokens` are those already published, none for a new job."""

    index: int
    tokens: list[int] = []


class BeamOptions(Message):
    """Search for the most likely sequences with `width` beams instead of sampling.

    A finished sequence scores the sum of its log-probabilities over (its length ** `length_penalty`). `early_stopping`:
    True ends with `width` finished sequences, False when a live one is unlikely to do better, "never" when it cannot.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False


class EngineSampling(Message):
    """`octavo.SamplingParams` as the engine needs it: no text, all defaults resolved.

    `max_tokens` counts from the first generated token, published ones included. `stop_token_ids` already contains
    the model's end-of-sequence ids unless the job ignores them.
    """

    seed: int
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: list[int] = []
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    beam: BeamOptions | None = None


class AddRequest(Message):
    """Agent to engine: run this job. `sequences` lists the unfinished ones.

    With `sampling.max_tokens` 0 the request ends with its `RequestStarted`; otherwise each sequence ends with the
    `TokenOutput` that has a `finish_reason`, or all of them with one `RequestFailed`. An id may be used again once its
    request has ended or was aborted.

    With `sampling.beam` the sequences are the best ones found, sequence 0 the best of all. They have no tokens yet, and
    all of theirs come at once at the end.

    The `prompt` are words of 32 bits, `array("I")`, which cross the socket as they lie in memory: there may be hundreds
    of thousands, and others wait while they are taken in.
    """

    id: str
    prompt: Words
    sequences: list[SequenceInput]
    sampling: EngineSampling
    salt: bytes = b""  # tenant salt of the prefix cache
    priority: int = NORMAL
    deadline: float | None = None  # seconds since the epoch
    grammar: Grammar | None = None  # of all sequences
    resumed: bool = False  # a reader may be in mid-stream: it goes before others of its class
    risen: int | None = None  # the class to which waiting has raised it, if any has


class Abort(Message):
    """Agent to engine: stop these. `index` None means all sequences of the request. Nothing more is sent about them.

    A beam search is stopped as a whole only: an `index` of one is ignored.
    """

    id: str
    index: int | None = None


class PinPrefix(Message):
    """Agent to engine: keep the full blocks of these tokens in memory under a name, in place of what it kept before.

    They are computed if they are not in memory yet. A request `pin:<name>` starts or fails when that is decided.
    """

    name: str
    tokens: list[int]
    salt: bytes = b""


class UnpinPrefix(Message):
    """Agent to engine: leave the prefix of that name to the cache. Unknown names are fine."""

    name: str


class DescribeMemory(Message):
    """Agent to engine: answer with a `MemoryReport` whose maps have at most `cells` cells."""

    cells: int


class DescribeBlocks(Message):
    """Agent to engine: answer with a `BlockReport`."""


class Shutdown(Message):
    """Agent to engine: exit now."""


class WindowLimits(Message):
    """The blocks of layers with a window, where they are a group of their own: `number` of them (0: they share memory
    with the others, where each takes as much as `weight` of those). A sequence has `live` of them at most, and a step
    `chunk` more for the prompts that it computes."""

    number: int
    live: int
    chunk: int
    weight: float = 0.0


class Ready(Message):
    """Engine to agent, once: the model is loaded. `kv_dtype` names the type of the KV cache, `quantization` the schemes
    of quantised weights (empty: none is), `numerics` what decides how the engine rounds, `grammars` what it follows
    grammars with. With `enough_blocks` free a sequence of any length can begin. `gives_way`: what runs of a class makes
    room for higher ones."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    kv_dtype: str
    max_running: int
    enough_blocks: int
    load_seconds: float
    numerics: str = ""
    quantization: str = ""
    grammars: str = ""
    gives_way: bool = True
    windows: WindowLimits | None = None


class StartRefused(Exception):
    """The model cannot be served as asked. The message says why, and what to do, and needs no traceback."""


class Refused(Message):
    """Engine to agent, instead of `Ready`: the model cannot be loaded, and the engine exits. Another try is in vain.
    `is_fault`: the reason is an error that was not foreseen, and the engine's stderr has its traceback."""

    reason: str
    is_fault: bool = False


class Logprob(Message):
    """Natural log-probability of a token and of the most likely alternatives, best first."""

    logprob: float
    top: list[tuple[int, float]] = []


class TokenOutput(Message):
    """One new token of one sequence. With `finish_reason` it is the sequence's last: a token that stops it (`stop`),
    one with which a grammar's text is complete (`complete`), or the last that its limits allow (`length`)."""

    id: str
    index: int
    token: int
    logprob: Logprob | None = None
    finish_reason: str | None = None


class RequestStarted(Message):
    """Engine to agent, when a request's prompt is computed: what the prefix cache saved, prompt logprobs, and the
    seconds from its arrival until it was first given memory."""

    id: str
    cached_tokens: int
    prompt_logprobs: list[Logprob | None] | None = None
    queued_s: float = 0.0


class RequestResumed(Message):
    """Engine to agent: preempted sequences of a request are back. `recomputed` tokens are computed a second time,
    `restored` ones came back from CPU memory; what the prefix cache had kept is in neither."""

    id: str
    recomputed: int
    restored: int


class BeamProgress(Message):
    """Engine to agent, once a step of a search that goes on: the best hypothesis so far, its score, and how many are
    finished. Later ones need not begin like it."""

    id: str
    tokens: list[int]
    score: float
    finished: int


FailureCode = Literal[
    "deadline",  # it passed
    "prompt_too_long",  # for the model's context
    "pool_too_small",  # this worker's KV memory can never hold the request
    "invalid_request",  # `param` says what is wrong
    "invalid_grammar",  # it cannot be compiled, or not be followed
    "grammar_too_slow",  # to compile, or to follow
    "busy",  # this machine could not do it: another attempt, here or elsewhere, may
    "no_grammar",  # can be followed by this worker
    "not_supported",  # by this worker's kernels: `param` says what
    "invalid_logits",  # the model's logits are not numbers
    "step_failed",  # the model could not compute it
]


class RequestFailed(Message):
    """Engine to agent: this request cannot run or was dropped, with all its sequences."""

    id: str
    code: FailureCode
    message: str
    param: str | None = None


class DraftsVerified(Message):
    """Engine to agent: a step has verified `drafted` guessed tokens of a request; `accepted` of them were right."""

    id: str
    drafted: int
    accepted: int


class RequestPromoted(Message):
    """Engine to agent: by waiting, a request has risen to the class `priority`, which it keeps."""

    id: str
    priority: int


class StepOutput(Message):
    """Engine to agent, once a step. `preempted` are requests of which nothing runs any more; they come back with a
    `RequestResumed`, or start."""

    tokens: list[TokenOutput]
    started: list[RequestStarted]
    failed: list[RequestFailed]
    stats: EngineStats
    resumed: list[RequestResumed] = []
    progress: list[BeamProgress] = []
    verified: list[DraftsVerified] = []
    preempted: list[str] = []
    promoted: list[RequestPromoted] = []


class MemoryReport(Message):
    """Engine to agent: the pool as `octavo_worker.memory.block_map` draws it, and the letters of the host's; the same
    of the slots for states and of the blocks of layers with a window, if there are any."""

    stats: EngineStats
    states: str
    references: list[int]
    sharing: list[tuple[int, int]]
    host_states: str
    slot_states: str = ""
    slot_references: list[int] = []
    window_states: str = ""
    window_references: list[int] = []


class BlockReport(Message):
    """Engine to agent: every block of the `device`, then every one of the `host`, in runs of equal codes (see
    `octavo.terms.messages.WorkerMap`): `codes` of 16 and `lengths` of 32 bits. `owners` are ids of requests. Behind
    them come, where there are any, blocks of layers with a window and slots for states, of the device and the host."""

    device: int
    host: int
    owners: list[str]
    codes: bytes
    lengths: bytes
    windows: tuple[int, int] | None = None
    states: tuple[int, int] | None = None


ToEngine = AddRequest | Abort | PinPrefix | UnpinPrefix | DescribeMemory | DescribeBlocks | Shutdown
ToAgent = Ready | Refused | StepOutput | MemoryReport | BlockReport
