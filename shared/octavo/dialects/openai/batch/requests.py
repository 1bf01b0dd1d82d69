"""The content of a batch line: its body as the endpoint that it names would take it, and the answer of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import from_json

from octavo.dialects.ignored import Ignored
from octavo.dialects.openai.answers import CompletedJob, answer
from octavo.dialects.openai.batch.envelope import URLS
from octavo.dialects.openai.problems import invalid_body
from octavo.dialects.openai.requests import ENDPOINTS, TABLES, ChatCompletionRequest, CompletionRequest
from octavo.dialects.openai.responses.events import ResponseLog
from octavo.dialects.openai.responses.items import check_outputs, stored
from octavo.dialects.openai.responses.record import Record
from octavo.dialects.openai.responses.requests import TABLE, ResponseRequest
from octavo.dialects.sieve import sift
from octavo.terms.batches import BatchUsage
from octavo.terms.errors import InvalidRequest
from octavo.terms.fields import MAX_BODY_BYTES
from octavo.terms.models import JobRequest

_BEYOND_ALL = 1 << 62  # events of a response: of one read for its final state none are told


@dataclass(frozen=True)
class LineRequest:
    """A request of one line, and the jobs that it asks for. `record` is there for a response alone."""

    body: ChatCompletionRequest | CompletionRequest | ResponseRequest
    jobs: tuple[JobRequest, ...]
    record: Record | None = None

    @property
    def grammar_field(self) -> str | None:
        """The field of the body that gave its jobs a grammar."""
        return "text.format" if isinstance(self.body, ResponseRequest) else self.body.grammar_field

    def answer(self, jobs: Sequence[CompletedJob], created: int) -> tuple[dict[str, Any], BatchUsage]:
        """The answer of the endpoint, and its tokens. `jobs` have all completed, `created` is in seconds since the
        epoch."""
        if isinstance(self.body, ResponseRequest):
            body = self._response(jobs[0], created)
            reasoning = body["usage"]["output_tokens_details"]["reasoning_tokens"]
        else:
            body, reasoning = answer(self.body, jobs, created), 0
        usages = [job.end.usage for job in jobs]
        return body, BatchUsage(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.cached_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            reasoning,
        )

    def _response(self, job: CompletedJob, created: int) -> dict[str, Any]:
        assert self.record is not None
        record = self.record.model_copy(update={"created_at": created})
        log = ResponseLog(record, job.id, after=_BEYOND_ALL)
        for chunk in job.chunks:
            log.add(chunk)
        log.end(job.end, created)
        return log.final


def line_request(
    url: str,
    body: bytes | Mapping[str, Any],
    defaults: Mapping[str, Any],
    ignored: Ignored,
    *,
    strict: bool = False,
) -> LineRequest:
    """The request of a line. `defaults` are those of fields that the body leaves out; `ignored` gets the names of those
    that change nothing, `strict` refuses unknown ones. Raises InvalidRequest, whatever is wrong with the content."""
    if url not in URLS:
        raise InvalidRequest(f"url must be {' or '.join(URLS)}", code="url_mismatch", param="url")
    fields = _fields(body)
    given = {**defaults, **{name: value for name, value in fields.items() if name not in defaults or value is not None}}
    try:
        sift(TABLES[ENDPOINTS[url]] if url in ENDPOINTS else TABLE, given, ignored, strict=strict)
        if url not in ENDPOINTS:
            return _of_response(ResponseRequest.model_validate(given))
        request = ENDPOINTS[url].model_validate(given)
        return LineRequest(request, tuple(request.jobs()))
    except ValidationError as error:
        raise invalid_body(error) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(str(error)) from None


def _fields(body: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(body, bytes):
        return body
    if len(body) > MAX_BODY_BYTES:
        message = f"the body is larger than {MAX_BODY_BYTES} bytes: send less"
        raise InvalidRequest(message, code="body_too_large", param="body")
    try:
        fields = from_json(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json", param="body") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("body must be an object", param="body")
    return fields


def _of_response(body: ResponseRequest) -> LineRequest:
    """A line stands for itself: its response is read from the output file, and never stored."""
    if body.previous_response_id is not None:
        message = "a line of a batch cannot go on from another response: send its items"
        raise InvalidRequest(message, code="unknown_parameter", param="previous_response_id")

    def refuse(name: str) -> NoReturn:
        raise InvalidRequest("a line of a batch cannot refer to items: send them", code="item_not_found", param="input")

    body = body.model_copy(update={"background": None, "store": False})
    items = stored(body.input, refuse)
    check_outputs(items)
    record = body.record(items, 0)
    return LineRequest(body, (body.job(record),), record)
