"""What the agent and the engine say to each other: the only thing the two processes share.

The agent owns text and Redis, the engine owns tokens and memory. Messages travel as length-prefixed msgpack arrays
over a socket pair; every message is one of the dataclasses below.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SequenceInput:
    """One sequence to generate. `tokens` are those already published, none for a new job."""

    index: int
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class EngineSampling:
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
    logit_bias: dict[int, float] = field(default_factory=dict)
    stop_token_ids: list[int] = field(default_factory=list)
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(slots=True)
class AddRequest:
    """Agent to engine: run this job. `sequences` lists only those that are not finished yet."""

    id: str
    prompt: list[int]
    sequences: list[SequenceInput]
    sampling: EngineSampling
    salt: bytes = b""  # tenant salt of the prefix cache
    priority: int = 1  # 0 high, 1 normal, 2 batch
    deadline: float | None = None  # seconds since the epoch


@dataclass(slots=True)
class Abort:
    """Agent to engine: stop these. `index` None means all sequences of the request."""

    id: str
    index: int | None = None


@dataclass(slots=True)
class Shutdown:
    """Agent to engine: exit now."""


@dataclass(slots=True)
class Ready:
    """Engine to agent, once: the model is loaded."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_running: int
    load_seconds: float


@dataclass(slots=True)
class Logprob:
    """Natural log-probability of a token and of the most likely alternatives, best first."""

    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class TokenOutput:
    """One new token of one sequence. With `finish_reason` it is the sequence's last."""

    id: str
    index: int
    token: int
    logprob: Logprob | None = None
    finish_reason: str | None = None  # stop | length


@dataclass(slots=True)
class RequestStarted:
    """Engine to agent, when a request's prompt is computed: what the prefix cache saved, and prompt logprobs."""

    id: str
    cached_tokens: int
    prompt_logprobs: list[Logprob | None] | None = None


@dataclass(slots=True)
class RequestFailed:
    """Engine to agent: this request cannot run or was dropped. `code` deadline means its deadline passed."""

    id: str
    code: str
    message: str
    param: str | None = None


@dataclass(slots=True)
class EngineStats:
    """The engine's state after a step: gauges, and counters since its start."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    used_blocks: int = 0
    cached_blocks: int = 0
    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    step_ms: float = 0.0


@dataclass(slots=True)
class StepOutput:
    """Engine to agent, once a step."""

    tokens: list[TokenOutput]
    started: list[RequestStarted]
    failed: list[RequestFailed]
    stats: EngineStats


ToEngine = AddRequest | Abort | Shutdown
ToAgent = Ready | StepOutput
