"""Reading request bodies: never more than the limits, one validation pass, clear errors, and large ones in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json

from octavo.dialects.field_table import FieldTable
from octavo.dialects.ignored import Ignored
from octavo.dialects.openai.thinking import EffortFields
from octavo.dialects.sieve import sift
from octavo.terms.errors import InvalidRequest, OctavoError
from octavo_gateway.errors import ApiError
from octavo_gateway.state import Gateway

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

JSON = "application/json"
MSGPACK = "application/msgpack"

STRICT = "octavo-strict"
"""Header of a request whose unknown fields are to be refused."""

_SAID = {"1": True, "true": True, "0": False, "false": False}

MAX_CONTAINERS = 16_000
MAX_MEMBERS = 48_000
MAX_VALUES = 300_000
"""Objects and arrays of a body, members of its objects, and all its values: each costs many times its bytes once it is
made. A megabyte has some 200,000 token ids."""

_LARGE = 16 * 1024  # bytes from which the hop to a thread costs less than what is done there


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ApiError 415 for one that is compressed, and 413 as soon as it is known to be larger than
    `limit` bytes."""
    if (coding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
        message = f"content encoding {coding[:100]!r}: send the body as it is"
        raise ApiError(415, message, code="unsupported_content_encoding", headers={"Accept-Encoding": "identity"})
    too_large = ApiError(413, f"the body is larger than {limit} bytes: send less", code="body_too_large")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise too_large
    request.state.is_large = len(body) >= _LARGE
    return bytes(body)


async def apart(request: Request, work: Callable[[], T]) -> T:
    """The result of `work` on a request's body. A thread does it for a large one: between two steps of Python code the
    event loop goes on. All share one thread, since they would not get on faster beside each other."""
    if not request.state.is_large:
        return work()
    gateway: Gateway = request.state.gateway
    return await asyncio.get_running_loop().run_in_executor(gateway.reader, work)


def media_type(request: Request, *accepted: str) -> str:
    """The body's media type, JSON where none is named. Raises ApiError 415 for one that is not accepted."""
    found = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if found not in accepted:
        raise ApiError(
            415, f"content type {found[:100]!r}: send {' or '.join(accepted)}", code="unsupported_media_type"
        )
    return found


def json_body(model: type[Model], fields: FieldTable | None = None) -> Callable[[Request], Awaitable[Model]]:
    """A FastAPI dependency: the request's JSON body as `model`. With `fields` its hints are taken and named."""

    async def read(request: Request) -> Model:
        media_type(request, JSON)
        gateway: Gateway = request.state.gateway
        sifted = None if fields is None else _sieve(request, fields)
        body = await read_body(request, gateway.settings.max_body_bytes)
        value = await apart(request, lambda: parsed(model, body, sifted))
        if fields is not None and isinstance(value, EffortFields) and value.says_how_to_think:
            variables = await _variables(gateway, value)
            for name in value.unread(variables) if variables is not None else ():
                request.state.ignored.add(name)
        return value

    return read


async def _variables(gateway: Gateway, body: EffortFields) -> tuple[str, ...] | None:
    """The variables that the model's template reads, as its workers say. None where they are not known: whatever
    hinders that, hinders the job more."""
    try:
        card = await gateway.cards.of(getattr(body, "model", ""))
    except OctavoError:
        return None
    return None if card is None else card.switches


def _sieve(request: Request, fields: FieldTable) -> Callable[[Any], None]:
    """Sifts the body of a request. What is ignored is named also where the request fails. Raises ApiError 400."""
    ignored = request.state.ignored = Ignored()
    return partial(sift, fields, ignored=ignored, strict=asks_strictly(request))


def asks_strictly(request: Request) -> bool:
    """True if unknown fields of this request are to be refused. Raises ApiError 400."""
    said = request.headers.get(STRICT, "0").strip().lower()
    if said not in _SAID:
        raise ApiError(400, f"{STRICT}: send 1, or leave it out", code="invalid_value", param=STRICT)
    gateway: Gateway = request.state.gateway
    return gateway.settings.strict_fields or _SAID[said]


def parsed(model: type[Model], body: bytes, sifted: Callable[[Any], None] | None = None) -> Model:
    """JSON as `model`. Invalid UTF-8, lone surrogates and too deep nesting are no JSON. Raises InvalidRequest, and
    ValidationError."""
    _check_counts(body)
    try:
        value = from_json(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if sifted is not None:
        sifted(value)
    return model.model_validate(value)


def _check_counts(body: bytes) -> None:
    """Raises InvalidRequest for more values than a body may have, before there is an object for each."""
    if _exceeds(body):
        outside = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]  # of strings
        if _exceeds(b"".join(outside)):
            raise InvalidRequest(
                f"the body has more than {MAX_CONTAINERS} objects and arrays, {MAX_MEMBERS} members of objects, or "
                f"{MAX_VALUES} values in all: send fewer",
                code="too_many_values",
            )


def _exceeds(text: bytes) -> bool:
    containers = text.count(b"{") + text.count(b"[")
    return containers > MAX_CONTAINERS or text.count(b":") > MAX_MEMBERS or text.count(b",") >= MAX_VALUES


def described(model: type[BaseModel], *media_types: str, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its own body."""
    schema = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    return {"requestBody": {"required": required, "content": dict.fromkeys(media_types or (JSON,), schema)}}


def add_schemas(openapi: dict[str, Any], *models: type[BaseModel]) -> None:
    """Complete an OpenAPI document with the models that `described` refers to."""
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    openapi.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
