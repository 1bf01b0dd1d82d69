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
from octavo.dialects.openai.answers import CompletedJob
from octavo.dialects.openai.batch.answers import ID_PREFIX, rejected, succeeded
from octavo.dialects.openai.batch.envelope import URLS
from octavo.dialects.openai.batch.requests import LineRequest, line_request
from octavo.dialects.openai.problems import invalid_body
from octavo.dialects.openai.requests import ChatCompletionRequest, CompletionRequest
from octavo.dialects.openai.tools import ToolBody
from octavo.terms.errors import InvalidRequest, OctavoError
from octavo.terms.fields import Priority
from octavo.terms.models import JobRequest


@dataclass(frozen=True)
class BatchLine:
    """One request of a batch file.

    A line that is no request has no jobs: `error` says why. Equal lines differ in `occurrence`. `ignored` names the
    fields of its body that were taken and change nothing.
    """

    number: int
    custom_id: str
    content: str
    occurrence: int = 0
    request: LineRequest | None = None
    error: OctavoError | None = None
    ignored: Ignored = field(default_factory=Ignored)

    @property
    def requests(self) -> tuple[JobRequest, ...]:
        """The jobs that it asks for."""
        return self.request.jobs if self.request is not None else ()

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
            found = _openai_request(fields, {"model": model, "priority": priority}, line.ignored, strict=strict)
            return replace(line, request=found)
        job = _plain_request({"model": model, "priority": priority, **fields})
        return replace(line, request=LineRequest(_shape(job), (job,)))
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
    assert line.request is not None
    body, _ = line.request.answer(jobs, int(time.time()))
    return succeeded(line.id, line.custom_id, jobs[0].id, body, line.ignored)


def failed(line: BatchLine, error: OctavoError) -> dict[str, Any]:
    """The output line of a request that was refused or of which a job did not complete."""
    return rejected(line.id, line.custom_id, line.id, error)


def _openai_request(line: dict[str, Any], defaults: dict[str, str], ignored: Ignored, *, strict: bool) -> LineRequest:
    url, body = line.get("url"), line["body"]
    if not isinstance(url, str):
        raise InvalidRequest(f"url must be {' or '.join(URLS)}", param="url")
    if not isinstance(body, dict):
        raise InvalidRequest("body must be an object", param="body")
    return line_request(url, body, defaults, ignored, strict=strict)


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
