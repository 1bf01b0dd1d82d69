"""Attributes of the spans of an attempt, under the names of the conventions."""

from __future__ import annotations

import json
import time

from octavo.queue.protocol import Claim
from octavo.terms.messages import JobStatus, Terminal
from octavo.terms.models import Attempt, JobRequest
from octavo.terms.tracing import conventions as names
from octavo.terms.tracing.spans import Value
from octavo_worker.agent.jobs import ActiveJob


def asked(claim: Claim, model: str) -> dict[str, Value]:
    """Attributes of every attempt at a job: what was asked for, of which model."""
    request, sampling = claim.request, claim.request.sampling
    found: dict[str, Value | None] = {
        names.OPERATION: names.TEXT_COMPLETION if request.messages is None else names.CHAT,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: request.model,
        names.RESPONSE_MODEL: model,
        names.RESPONSE_ID: claim.job_id,
        names.REQUEST_CHOICES: sampling.n if sampling.n != 1 else None,
        names.REQUEST_SEED: sampling.seed,
        names.REQUEST_MAX_TOKENS: sampling.max_tokens,
        names.REQUEST_TEMPERATURE: sampling.temperature,
        names.REQUEST_TOP_K: sampling.top_k,
        names.REQUEST_TOP_P: sampling.top_p,
        names.REQUEST_FREQUENCY_PENALTY: sampling.frequency_penalty or None,
        names.REQUEST_PRESENCE_PENALTY: sampling.presence_penalty or None,
        names.OUTPUT_TYPE: _output_type(request),
        names.MESSAGING_SYSTEM: names.PROVIDER,
        names.MESSAGING_OPERATION: names.PROCESS,
        names.MESSAGING_OPERATION_TYPE: names.PROCESS,
        names.MESSAGING_DESTINATION: model,
        names.MESSAGING_MESSAGE: claim.job_id,
        names.TENANT: claim.tenant,
        names.PRIORITY: claim.priority,
    }
    return {name: value for name, value in found.items() if value is not None}


def _output_type(request: JobRequest) -> str:
    return "json" if request.grammar is not None and request.grammar.kind in ("json_schema", "json_object") else "text"


def told(number: int, attempt: Attempt) -> dict[str, Value]:
    """Attributes of one attempt."""
    found: dict[str, Value | None] = {
        names.ATTEMPT: number,
        names.ATTEMPT_END: attempt.why,
        names.WORKER: attempt.worker,
        names.TOKENS_BEFORE: attempt.tokens_before,
        names.TOKENS_AFTER: attempt.tokens,
    }
    return {name: value for name, value in found.items() if value is not None}


def outcome(job: ActiveJob, terminal: Terminal) -> dict[str, Value]:
    """Attributes of the attempt that ended the job."""
    usage = terminal.usage
    found: dict[str, Value] = {
        names.USAGE_INPUT: usage.prompt_tokens,
        names.USAGE_OUTPUT: usage.completion_tokens,
        names.USAGE_CACHED: usage.cached_tokens,
        names.TOKENS_AFTER: usage.completion_tokens,
    }
    if terminal.status is JobStatus.COMPLETED:
        found[names.RESPONSE_FINISH_REASONS] = [sequence.finish_reason or "length" for sequence in job.sequences]
    if job.computed_at is not None and job.claim.offset == 0:
        waited_s = time.time() - job.claim.waits_since
        found[names.RESPONSE_FIRST_CHUNK] = max(0.0, waited_s - (time.monotonic() - job.computed_at))
    return found


def content(job: ActiveJob) -> dict[str, Value]:
    """Attributes with what was asked and answered, in the form of the conventions."""
    request = job.claim.request
    turns = [_turn(message.role, message.text) for message in request.messages or ()]
    if isinstance(request.prompt, str):
        turns = [_turn("user", request.prompt)]
    answers = [
        {**_turn("assistant", "".join(sequence.texts)), "finish_reason": sequence.finish_reason or ""}
        for sequence in job.sequences
    ]
    found: dict[str, Value] = {names.INPUT_MESSAGES: json.dumps(turns), names.OUTPUT_MESSAGES: json.dumps(answers)}
    if request.tools:
        found[names.TOOL_DEFINITIONS] = json.dumps([tool.model_dump(mode="json") for tool in request.tools])
    return found


def _turn(role: str, text: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}
