"""Responses and their events by others: the published Open Responses schemas, and the `openai` package."""

from __future__ import annotations

from typing import Any

import openresponses_types.types as published
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

_OPENAI_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_EVENTS: dict[str, type[BaseModel]] = {
    str(next(iter(published.__dict__[model.model_fields["type"].annotation.__name__])).value): model
    for name, model in vars(published).items()
    if name.endswith("StreamingEvent") and isinstance(model, type)
}
_PUBLISHED_AS = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
"""Two events have one name in OpenAI's API, which its clients know, and another in the published schemas."""


def check_response(response: dict[str, Any]) -> None:
    """Raises ValidationError."""
    Response.model_validate(_without_own_codes(response))
    published.ResponseResource.model_validate(_without_schema(response))


def check_event(event: dict[str, Any]) -> None:
    """Raises ValidationError, KeyError."""
    if "response" in event:
        check_response(event["response"])
        _OPENAI_EVENT.validate_python({**event, "response": _without_own_codes(event["response"])})
        event = {**event, "response": _without_schema(event["response"])}
    else:
        _OPENAI_EVENT.validate_python(event)
    name = _PUBLISHED_AS.get(event["type"], event["type"])
    _EVENTS[name].model_validate({**event, "type": name})


def check_item(item: dict[str, Any]) -> None:
    """Raises ValidationError."""
    kinds = published.Message | published.FunctionCall | published.FunctionCallOutput | published.ReasoningBody
    TypeAdapter(kinds).validate_python(item)


def _without_own_codes(response: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's package lists the error codes of OpenAI."""
    error = response["error"]
    return {**response, "error": error and {**error, "code": "server_error"}}


def _without_schema(response: dict[str, Any]) -> dict[str, Any]:
    """The published types allow no schema in the echo of a format, which OpenAI's API has."""
    form = response["text"]["format"]
    shown = {**form, "schema": None} if "schema" in form else form
    return {**response, "text": {**response["text"], "format": shown}}
