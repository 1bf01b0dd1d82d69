"""Lines of batch files: from what people write to job requests, from completed jobs to OpenAI's batch output.

Two kinds of input line are understood: OpenAI's (`custom_id`, `method`, `url`, `body`), and a plain object with
`prompt` or `messages` and any field of a job, for example `{"prompt": "ROMEO:", "max_tokens": 64}`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from octavo.errors import InvalidRequest, OctavoError
from octavo.models import JobRequest
from octavo.openai.answers import CompletedJob, answer
from octavo.openai.problems import invalid_body
from octavo.openai.requests import ENDPOINTS, ChatCompletionRequest, CompletionRequest
from octavo.requests import build_request


@dataclass(frozen=True)
class BatchLine:
    """One request of a batch file: the jobs that it asks for, and the body that shapes their answer.

    A line that is no request has no jobs: `error` says why.
    """

    number: int
    custom_id: str
    requests: tuple[JobRequest, ...] = ()
    body: ChatCompletionRequest | CompletionRequest | None = None
    error: OctavoError | None = None


def parse_line(text: str, number: int, default_model: str) -> BatchLine:
    """Line `number` (from 1) of a batch file. Never raises: a bad line becomes a line with an error."""
    custom_id = f"line-{number}"
    try:
        fields = json.loads(text)
        json.dumps(fields, ensure_ascii=False).encode()  # half a surrogate pair can be written nowhere
        if not isinstance(fields, dict):
            raise InvalidRequest("the line is not a JSON object")
        custom_id = str(fields.pop("custom_id", custom_id))
        if "body" in fields:
            body = _openai_body(fields, default_model)
            return BatchLine(number, custom_id, tuple(body.jobs()), body)
        request = _plain_request({"model": default_model, **fields})
        return BatchLine(number, custom_id, (request,), _shape(request))
    except json.JSONDecodeError as error:
        return BatchLine(number, custom_id, error=InvalidRequest(f"the line is not JSON: {error}"))
    except OctavoError as error:
        return BatchLine(number, custom_id, error=error)
    except ValidationError as error:
        return BatchLine(number, custom_id, error=invalid_body(error))
    except (TypeError, ValueError, RecursionError) as error:
        return BatchLine(number, custom_id, error=InvalidRequest(str(error)))


def completed(line: BatchLine, jobs: Sequence[CompletedJob]) -> dict[str, Any]:
    """The output line of a request whose jobs have all completed."""
    assert line.body is not None
    job_id = jobs[0].id
    response = {"status_code": 200, "request_id": job_id, "body": answer(line.body, jobs, int(time.time()))}
    return {"id": f"batch_req_{job_id}", "custom_id": line.custom_id, "response": response, "error": None}


def failed(line: BatchLine, error: OctavoError) -> dict[str, Any]:
    """The output line of a request that was refused or of which a job did not complete."""
    problem = {"code": error.code, "message": error.message, "param": error.param}
    return {"id": f"batch_req_line-{line.number}", "custom_id": line.custom_id, "response": None, "error": problem}


def _openai_body(line: dict[str, Any], default_model: str) -> ChatCompletionRequest | CompletionRequest:
    url, body = line.get("url"), line["body"]
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise InvalidRequest(f"url must be {' or '.join(ENDPOINTS)}", param="url")
    if not isinstance(body, dict):
        raise InvalidRequest("body must be an object", param="body")
    if body.get("model") is None:
        body = {**body, "model": default_model}
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
        return ChatCompletionRequest.model_construct(**shared, messages=(), logprobs=sampling.logprobs is not None)
    return CompletionRequest.model_construct(**shared, prompt=request.prompt or "", logprobs=sampling.logprobs)
