"""Messages that workers write into the queue: one struct each, its fields in the order that they have in a frame.

A field may be added at the end, with a default: earlier versions leave it off. `octavo.queue.wire` makes frames of
them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from octavo.terms.structs import Record

FinishReason = Literal["stop", "length", "abort"]


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


class QueueMessage(Record, msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An immutable message."""


class JobError(QueueMessage, frozen=True):
    """Why a job failed. `code` is stable and machine-readable, `message` says what to do next."""

    code: str
    message: str
    param: str | None = None


class Usage(QueueMessage, frozen=True):
    """Tokens of a finished job. `completion_tokens` equals the tokens stored in its stream.

    `cached_tokens` of the prompt were found in the prefix cache. Of the tokens that preemptions took from the job,
    `recomputed_tokens` were computed again and `restored_tokens` came back from CPU memory. `drafted_tokens` were
    guessed and verified, `accepted_tokens` of them were right; they count since the job's last owner took it.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    restored_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class WorkerMap(QueueMessage, frozen=True):
    """A worker's KV memory, block by block: those of its `device`, then those of the `host`, which hold what sequences
    had when they were swapped. Neighbouring blocks of equal codes are a run: `codes` has 16 bits for each,
    `lengths` 32, the least significant byte first.

    A code is free (0), cached (1), quarantined (2), 3 where the other group of blocks has that memory, or 16 and the
    place of a job in `owners`. 0x8000 is added where several sequences share a block, which is that of the first,
    0x4000 where a pin keeps it resident.

    Behind these blocks come those of layers with a window, if they are apart, then slots for states of recurrent
    layers: `windows` and `states` say how many the device and the host have, None where a model has none.
    """

    worker: str
    at: float
    block_size: int
    device: int
    host: int
    owners: tuple[str, ...]
    codes: bytes
    lengths: bytes
    windows: tuple[int, int] | None = None
    states: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """All blocks and slots."""
        return self.device + self.host + sum(self.windows or ()) + sum(self.states or ())


class TopLogprob(QueueMessage, frozen=True):
    """One alternative: its id, its bytes (a token may be part of a character) and its natural log-probability."""

    token_id: int
    token: bytes
    logprob: float


class TokenLogprob(QueueMessage, frozen=True):
    """The chosen token and the most likely alternatives, best first. `logprob` is None for a prompt's first token."""

    token_id: int
    token: bytes
    logprob: float | None
    top: tuple[TopLogprob, ...] = ()


class AnswerFormat(QueueMessage, frozen=True):
    """How the text of a sequence is written, in the names of `octavo.dialects.parsing`: its calls of tools and its
    thoughts. `opened`: the prompt ended inside a thought, so the text begins there."""

    tools: str = "none"
    reasoning: str = "none"
    opened: bool = False


class Chunk(QueueMessage, frozen=True):
    """Consecutive tokens of one sequence, as stored: one text piece a token, so that a reader may cut anywhere.

    `texts[i]` is the text that became certain with token i. It is empty while a character or a possible stop string is
    incomplete. `format` is on the first chunk of a sequence whose text is to be parsed.
    """

    index: int = 0
    token_ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    format: AnswerFormat | None = None

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.texts):
            raise ValueError("a chunk needs one text for every token")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError("a chunk needs log-probabilities for every token or none")

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def after(self, skip: int) -> Chunk:
        """The same chunk without its first `skip` tokens."""
        if skip <= 0:
            return self
        logprobs = None if self.logprobs is None else self.logprobs[skip:]
        return Chunk(self.index, self.token_ids[skip:], self.texts[skip:], logprobs, self.finish_reason, self.format)


class Terminal(QueueMessage, frozen=True):
    """The last entry of every stream."""

    status: JobStatus
    usage: Usage = Usage()
    error: JobError | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class Progress(QueueMessage, frozen=True):
    """How far a beam search is: its best sequence so far, of `tokens` tokens, which another one may yet replace.

    `finished` counts complete sequences. `attempt` grows when another worker starts the search over.
    """

    attempt: int
    tokens: int
    score: float
    finished: int
    text: str


class TokenizerQuestion(QueueMessage, frozen=True):
    """To the tokenizer of a model: the ids of a job's prompt (`request`, a frame), or the text of `token_ids`."""

    answer_id: str
    request: bytes | None = None
    token_ids: tuple[int, ...] | None = None


class TokenizerAnswer(QueueMessage, frozen=True):
    """Ids with the name that the tokenizer has for each, or a text; or why there is none."""

    token_ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    text: str = ""
    error: JobError | None = None
