"""Lines of batch files: from what people write to job requests, from completed jobs to OpenAI's batch output.

Two kinds of input line are understood: OpenAI's (`custom_id`, `method`, `url`, `body`), and a plain object with
`prompt` or `messages` and any field of a job, for example `{"prompt": "ROMEO:", "max_tokens": 64}`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from octavo.client.requests import build_request
from octavo.dialects.ignored import Ignored
from octavo.dialects.openai.answers import CompletedJob, answer
from octavo.dialects.openai.problems import invalid_body
from octavo.dialects.openai.requests import ENDPOINTS, TABLES, ChatCompletionRequest, CompletionRequest
from octavo.dialects.openai.tools import ToolBody
from octavo.dialects.sieve import sift
from octavo.terms.errors import InvalidRequest, OctavoError
from octavo.terms.fields import Priority
from octavo.terms.models import JobRequest

ID_PREFIX = "batch_req_"


@dataclass(frozen=True)
class BatchLine:
    """One request of a batch file: the jobs that it asks for, and the body that shapes their answer.

    A line that is no request has no jobs: `error` says why. Equal lines differ in `occurrence`. `ignored` names the
    fields of its body that were taken and change nothing.
    """

    number: int
    custom_id: str
    content: str
    occurrence: int = 0
    requests: tuple[JobRequest, ...] = ()
    body: ChatCompletionRequest | CompletionRequest | None = None
    error: OctavoError | None = None
    ignored: Ignored = field(default_factory=Ignored)

    @property
    def id(self) -> str:
        """Names the request itself, wherever in the file it stands."""
        parts = (self.content, str(self.occurrence), *(request.model for request in self.requests[:1]))
        return ID_PREFIX + sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def parse_lines(
    texts: Iterable[str], model: str, priority: Priority = "batch", *, strict: bool = False
) -> list[BatchLine]:
    """All lines of a batch file that are not blank. `model` and `priority` are those of lines that name none; `strict`
    refuses fields of bodies that are unknown."""
    lines = [
        parse_line(text, number, model, priority, strict=strict) for number, text in enumerate(texts, 1) if text.strip()
    ]
    seen: Counter[str] = Counter()
    for place, line in enumerate(lines):
        lines[place] = replace(line, occurrence=seen[line.content])
        seen[line.content] += 1
    return lines


def parse_line(text: str, number: int, model: str, priority: Priority = "batch", *, strict: bool = False) -> BatchLine:
    """Line `number` (from 1) of a batch file. Never raises: a bad line becomes a line with an error."""
    line = BatchLine(number, f"line-{number}", repr(text))
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise InvalidRequest("the line is not a JSON object")
        line = replace(line, content=json.dumps(fields, ensure_ascii=False, sort_keys=True))
        line.content.encode()  # half a surrogate pair can be written nowhere
        line = replace(line, custom_id=_custom_id(fields.pop("custom_id", None)) or line.custom_id)
        if "body" in fields:
            body = _openai_body(fields, {"model": model, "priority": priority}, line.ignored, strict=strict)
            return replace(line, requests=tuple(body.jobs()), body=body)
        request = _plain_request({"model": model, "priority": priority, **fields})
        return replace(line, requests=(request,), body=_shape(request))
    except json.JSONDecodeError as error:
        return replace(line, error=InvalidRequest(f"the line is not JSON: {error}"))
    except OctavoError as error:
        return replace(line, error=error)
    except ValidationError as error:
        return replace(line, error=invalid_body(error))
    except (TypeError, ValueError, RecursionError) as error:
        return replace(line, error=InvalidRequest(str(error)))


def _custom_id(given: Any) -> str | None:
    if given is not None and not isinstance(given, str | int):
        raise InvalidRequest("custom_id must be a string", param="custom_id")
    return None if given is None else str(given)


def completed(line: BatchLine, jobs: Sequence[CompletedJob]) -> dict[str, Any]:
    """The output line of a request whose jobs have all completed."""
    assert line.body is not None
    job_id = jobs[0].id
    response = {"status_code": 200, "request_id": job_id, "body": answer(line.body, jobs, int(time.time()))}
    if line.ignored:
        response["ignored"] = line.ignored.header()
    return {"id": line.id, "custom_id": line.custom_id, "response": response, "error": None}


def failed(line: BatchLine, error: OctavoError) -> dict[str, Any]:
    """The output line of a request that was refused or of which a job did not complete."""
    problem = {"code": error.code, "message": error.message, "param": error.param}
    return {"id": line.id, "custom_id": line.custom_id, "response": None, "error": problem}


def _openai_body(
    line: dict[str, Any], defaults: dict[str, str], ignored: Ignored, *, strict: bool
) -> ChatCompletionRequest | CompletionRequest:
    url, body = line.get("url"), line["body"]
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise InvalidRequest(f"url must be {' or '.join(ENDPOINTS)}", param="url")
    if not isinstance(body, dict):
        raise InvalidRequest("body must be an object", param="body")
    body = {**defaults, **{name: value for name, value in body.items() if name not in defaults or value is not None}}
    sift(TABLES[ENDPOINTS[url]], body, ignored, strict=strict)
    return ENDPOINTS[url].model_validate_json(json.dumps(body))  # JSON again: its rules for types are other ones


def _plain_request(fields: dict[str, Any]) -> JobRequest:
    if isinstance(fields.get("logit_bias"), dict):  # keys of JSON objects are strings
        fields["logit_bias"] = {int(token): bias for token, bias in fields["logit_bias"].items()}
    return build_request(fields.pop("prompt", None), **fields)


def _shape(request: JobRequest) -> ChatCompletionRequest | CompletionRequest:
    """The body whose answer has the form for a plain request."""
    sampling = request.sampling
    shared: dict[str, Any] = {"model": request.model, "n": sampling.n, "stop": sampling.stop}
    if request.messages is not None:
        return ChatCompletionRequest.model_construct(
            **shared,
            messages=(),
            logprobs=sampling.logprobs is not None,
            tools=tuple(ToolBody.of(tool) for tool in request.tools),
            parallel_tool_calls=request.parallel_tool_calls,
        )
    return CompletionRequest.model_construct(**shared, prompt=request.prompt or "", logprobs=sampling.logprobs)
