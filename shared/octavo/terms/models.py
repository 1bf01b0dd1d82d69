"""Requests that a service submits, and the results that it gets back.

These models are the contract between clients, the gateway and the workers. They hold no behaviour beyond
validation: anything accepted here can be stored, sent and resumed as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from octavo.terms.conversation import Message, TemplateArguments, check_final
from octavo.terms.fields import (
    LATEST,
    Frozen,
    Metadata,
    ModelName,
    Priority,
    Requested,
    TokenIds,
    as_seconds,
    few_members,
)
from octavo.terms.messages import (
    AnswerFormat,
    Chunk,
    FinishReason,
    JobError,
    JobStatus,
    Progress,
    Terminal,
    TokenLogprob,
    Usage,
)
from octavo.terms.positions import Position
from octavo.terms.sampling import SamplingParams
from octavo.terms.structured import Grammar, as_grammar, check_grammar
from octavo.terms.tools import MAX_TOOLS, Tool, ToolChoice, check_tools


def _checked(grammar: Grammar) -> Grammar:
    check_grammar(grammar)
    return grammar


class JobRequest(Requested):
    """One generation job: exactly one of `prompt` (text or token ids) and `messages`.

    `timeout_s` bounds the whole job, `queue_timeout_s` the wait for a worker; a job past either ends as `expired`. The
    priority `batch` is for work whose single jobs are not awaited: it comes after all other, and a worker begins with
    the job of the highest `max_tokens`. With a `grammar` the text of every sequence obeys it, unless it is cut off by
    `max_tokens`, the context or a stop string.

    `tools`, `tool_choice` and `chat_template_kwargs` belong to `messages`. `parsed`: the answer is to be taken apart by
    `octavo.dialects.parsing`, so markers of calls and thoughts stay in its text and its first chunk names their format.
    Jobs with tools are parsed in any case.

    With `continue_final_message` the last message, an assistant's, is the beginning of the answer: the model goes on
    behind its last character, and only what it adds is generated.

    `notify`: webhook endpoints of the tenant that name the types `job.*` hear of the job's end. `not_before`: the time,
    in seconds since the epoch or as ISO 8601, before which it waits for no worker; `timeout_s` and `queue_timeout_s`
    count from then on. Neither is part of what is repeated under an idempotency key.
    """

    model: ModelName
    prompt: str | TokenIds | None = None
    messages: Annotated[tuple[Message, ...], Field(fail_fast=True)] | None = None
    sampling: SamplingParams = SamplingParams()
    grammar: (
        Annotated[Grammar, BeforeValidator(as_grammar), BeforeValidator(few_members), AfterValidator(_checked)] | None
    ) = None
    tools: Annotated[tuple[Tool, ...], Field(max_length=MAX_TOOLS, fail_fast=True)] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    chat_template_kwargs: TemplateArguments = Field(default_factory=dict)
    parsed: bool = False
    continue_final_message: bool = False
    priority: Priority = "normal"
    add_special_tokens: bool = True
    timeout_s: float | None = Field(None, gt=0, le=30 * 86400)
    queue_timeout_s: float | None = Field(None, gt=0, le=30 * 86400)
    metadata: Metadata = Field(default_factory=dict)
    notify: bool = False
    not_before: Annotated[float | None, BeforeValidator(as_seconds)] = Field(None, ge=0, le=LATEST)

    @model_validator(mode="after")
    def _one_kind_of_prompt(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of prompt and messages")
        if self.prompt is not None and len(self.prompt) == 0:
            raise ValueError("prompt is empty: give at least one character or token id")
        if self.messages is not None and len(self.messages) == 0:
            raise ValueError("messages is empty: give at least one message")
        return self

    @model_validator(mode="after")
    def _tools_of_a_conversation(self) -> Self:
        if self.messages is None and (self.tools or self.chat_template_kwargs):
            raise ValueError("tools and chat_template_kwargs go into a chat template: give messages")
        check_tools(self.tools, self.tool_choice)
        return self

    @model_validator(mode="after")
    def _final_message_can_be_continued(self) -> Self:
        if self.continue_final_message:
            check_final(self.messages or ())
            if beside := self._whole_answer_of:
                raise ValueError(
                    f"continue_final_message and {beside} do not go together, since it is said of a whole answer: "
                    "leave one of them out"
                )
        return self

    @property
    def _whole_answer_of(self) -> str | None:
        """The field that prescribes how an answer begins, if there is one."""
        if self.grammar is not None:
            return "grammar"
        if self.tool_choice.mode == "required":
            return "tool_choice"
        return "strict tools" if any(tool.strict for tool in self.offered_tools) else None

    @property
    def prompt_texts(self) -> Iterator[str]:
        """All text that may go into the prompt."""
        if isinstance(self.prompt, str):
            yield self.prompt
        for message in self.messages or ():
            yield from message.texts
        for tool in self.offered_tools:
            yield from (tool.name, tool.description, tool.parameters)

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools that the model gets to see."""
        return () if self.tool_choice.mode == "none" else self.tools

    def is_obeyed(self, tool: Tool) -> bool:
        """True if the arguments of every call of the tool obey its schema."""
        return tool.strict or (self.tool_choice.mode == "required" and self.tool_choice.name in (None, tool.name))

    @property
    def is_parsed(self) -> bool:
        return self.parsed or bool(self.offered_tools)


class Event(Frozen):
    """One step of a stream: tokens, or its end. Or the `progress` of a beam search, which is no part of the stream: it
    changes no offset, is not stored, and may be missed.

    `offset` counts the tokens of all sequences up to and including this event; resuming with `after=offset`
    continues with the next token. For a job with several sequences resume with `after=position`, which holds through
    restarts of the server; it names the `epoch` of the claim that wrote the token. `end` is set on the last event only.
    `reset`: the place that was resumed from does not hold any more; drop what was read, the stream comes again from
    `offset`, its beginning.
    """

    offset: int
    chunk: Chunk | None = None
    end: Terminal | None = None
    progress: Progress | None = None
    reset: bool = False
    epoch: str = ""

    @property
    def position(self) -> str:
        return str(Position(self.offset, self.epoch))

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
    """A job that was given up: `reason` is dead_lettered (three engines crashed over it alone) or job_damaged. `at` is
    in seconds since the epoch, by the server's clock; `model` and `tenant` are None once the job is forgotten."""

    job_id: str
    reason: str
    at: float
    worker: str | None = None
    attempts: int = 0
    model: str | None = None
    tenant: str | None = None


class SequenceResult(Frozen):
    """The whole of one generated sequence."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None = None
    format: AnswerFormat | None = None


class Attempt(Frozen):
    """A worker's time with a job, in seconds since the epoch by the server's clock: the tokens stored when it began and
    when it was over, and `why` it was: `back` (its worker gave it back), `crashed` or `killed` (its engine died),
    `lapsed` (its worker went silent), or the status with which the job ended. None: it goes on, or is not known."""

    worker: str | None = None
    started_at: float | None = None
    tokens_before: int | None = None
    ended_at: float | None = None
    tokens: int | None = None
    why: str | None = None


class JobInfo(Frozen):
    """Where a job stands now. Times are seconds since the epoch, by the server's clock. `usage` once a worker has
    ended it. `crashes` of workers that ran it, since it last got on by 64 tokens. `history` has its latest 16 attempts,
    oldest first; `first_token_at` is when its first tokens were stored. `trace_id` is that of its trace, in
    hexadecimal. `not_before` is the time before which it was not to start."""

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
    metadata: dict[str, str] = Field(default_factory=dict)
    usage: Usage | None = None
    progress: Progress | None = None
    first_token_at: float | None = None
    history: tuple[Attempt, ...] = ()
    trace_id: str | None = None
    not_before: float | None = None


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
