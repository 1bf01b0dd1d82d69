"""Lines of batch files: from what people write to job requests, from results to OpenAI's batch output.

Two kinds of input line are understood: OpenAI's (`custom_id`, `method`, `url`, `body`), and a plain object with
`prompt` or `messages` and any field of a job, for example `{"prompt": "ROMEO:", "max_tokens": 64}`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequest, OctavoError
from octavo.models import JobRequest, Result
from octavo.requests import build_request

_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"
_IGNORED = ("stream", "stream_options", "user", "store")
_UNSUPPORTED = ("logprobs", "top_logprobs", "echo", "tools", "response_format")


@dataclass(frozen=True)
class BatchLine:
    """One request of a batch file. `request` is None if the line is no request: `error` says why."""

    number: int
    custom_id: str
    request: JobRequest | None
    error: OctavoError | None = None

    @property
    def is_chat(self) -> bool:
        return self.request is not None and self.request.messages is not None


def parse_line(text: str, number: int, default_model: str) -> BatchLine:
    """Line `number` (from 1) of a batch file. Never raises: a bad line becomes a line with an error."""
    custom_id = f"line-{number}"
    try:
        fields = json.loads(text)
        json.dumps(fields, ensure_ascii=False).encode()  # half a surrogate pair can be written nowhere
        if not isinstance(fields, dict):
            raise InvalidRequest("the line is not a JSON object")
        custom_id = str(fields.pop("custom_id", custom_id))
        body = {"model": default_model, **(_openai_body(fields) if "body" in fields else fields)}
        if isinstance(body.get("logit_bias"), dict):  # keys of JSON objects are strings
            body["logit_bias"] = {int(token): bias for token, bias in body["logit_bias"].items()}
        return BatchLine(number, custom_id, build_request(body.pop("prompt", None), **body))
    except json.JSONDecodeError as error:
        return BatchLine(number, custom_id, None, InvalidRequest(f"the line is not JSON: {error}"))
    except OctavoError as error:
        return BatchLine(number, custom_id, None, error)
    except (TypeError, ValueError, RecursionError) as error:
        return BatchLine(number, custom_id, None, InvalidRequest(str(error)))


def completed(line: BatchLine, result: Result) -> dict[str, Any]:
    """The output line of a job that completed."""
    chat = line.is_chat
    choices = [
        {
            "index": sequence.index,
            "finish_reason": sequence.finish_reason,
            **({"message": {"role": "assistant", "content": sequence.text}} if chat else {"text": sequence.text}),
        }
        for sequence in result.sequences
    ]
    usage = result.usage
    body = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{result.id}",
        "object": "chat.completion" if chat else "text_completion",
        "model": result.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
    response = {"status_code": 200, "request_id": result.id, "body": body}
    return {"id": f"batch_req_{result.id}", "custom_id": line.custom_id, "response": response, "error": None}


def failed(line: BatchLine, error: OctavoError) -> dict[str, Any]:
    """The output line of a request that was refused or of a job that did not complete."""
    problem = {"code": error.code, "message": error.message, "param": error.param}
    return {"id": f"batch_req_line-{line.number}", "custom_id": line.custom_id, "response": None, "error": problem}


def _openai_body(line: dict[str, Any]) -> dict[str, Any]:
    url, body = line.get("url"), line["body"]
    if url not in (_CHAT, _COMPLETION):
        raise InvalidRequest(f"url must be {_CHAT} or {_COMPLETION}", param="url")
    if not isinstance(body, dict):
        raise InvalidRequest("body must be an object", param="body")
    fields = {name: value for name, value in body.items() if value is not None and name not in _IGNORED}
    if fields.get("response_format") == {"type": "text"}:
        del fields["response_format"]
    for name in _UNSUPPORTED:
        if fields.pop(name, None):
            raise InvalidRequest(f"{name} is not supported in batch files", param=name)
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    fields.setdefault("max_tokens", 16 if url == _COMPLETION else None)
    if isinstance(fields.get("seed"), int):
        fields["seed"] %= 1 << 63
    if "messages" in fields:
        fields["messages"] = [_message(message) for message in fields["messages"]]
    return fields


def _message(message: Any) -> Any:
    """Without nulls, and with one string for a list of text parts."""
    if not isinstance(message, dict):
        return message
    fields = {name: value for name, value in message.items() if value is not None}
    if isinstance(parts := fields.get("content"), list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
            raise InvalidRequest("content has a part that is not text, and nothing else is supported", param="messages")
        fields["content"] = "".join(part.get("text", "") for part in parts)
    return fields
