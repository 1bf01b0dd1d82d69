"""Public models: requests, events, results. Inside octavo they are imported from `octavo.terms`."""

from octavo.terms.conversation import Message
from octavo.terms.fields import (
    MAX_BODY_BYTES,
    MAX_LOGIT_BIAS,
    MAX_PINS,
    MAX_SEQUENCES,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
    IdempotencyKey,
    ModelName,
    Priority,
    StopString,
    TokenId,
    TokenIds,
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
    TopLogprob,
    Usage,
)
from octavo.terms.models import DeadLetter, Event, JobInfo, JobRequest, Result, SequenceResult
from octavo.terms.sampling import SamplingParams
from octavo.terms.structured import Grammar
from octavo.terms.tools import Tool, ToolCall, ToolChoice
from octavo.terms.workers import CELL_STATES, ModelCard, PinnedPrefix, PinOutcome, PrefixPin, WorkerInfo, WorkerMemory

__all__ = [
    "CELL_STATES",
    "MAX_BODY_BYTES",
    "MAX_LOGIT_BIAS",
    "MAX_PINS",
    "MAX_SEQUENCES",
    "MAX_STOP_STRINGS",
    "MAX_TOP_LOGPROBS",
    "AnswerFormat",
    "Chunk",
    "DeadLetter",
    "Event",
    "FinishReason",
    "Grammar",
    "IdempotencyKey",
    "JobError",
    "JobInfo",
    "JobRequest",
    "JobStatus",
    "Message",
    "ModelCard",
    "ModelName",
    "PinOutcome",
    "PinnedPrefix",
    "PrefixPin",
    "Priority",
    "Progress",
    "Result",
    "SamplingParams",
    "SequenceResult",
    "StopString",
    "Terminal",
    "TokenId",
    "TokenIds",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "TopLogprob",
    "Usage",
    "WorkerInfo",
    "WorkerMemory",
]
