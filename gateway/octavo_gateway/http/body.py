"""Reading request bodies: never more than the limit, one validation pass, clear errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from octavo_gateway.errors import ApiError
from octavo_gateway.state import Gateway

Model = TypeVar("Model", bound=BaseModel)

JSON = "application/json"
MSGPACK = "application/msgpack"


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is known to be larger than `limit` bytes."""
    too_large = ApiError(413, f"the body is larger than {limit} bytes: send less", code="body_too_large")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise too_large
    return bytes(body)


def media_type(request: Request, *accepted: str) -> str:
    """The body's media type, JSON where none is named. Raises ApiError 415 for one that is not accepted."""
    found = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if found not in accepted:
        raise ApiError(
            415, f"content type {found[:100]!r}: send {' or '.join(accepted)}", code="unsupported_media_type"
        )
    return found


def json_body(model: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """A FastAPI dependency: the request's JSON body as `model`.

    Straight from bytes to model: invalid UTF-8, lone surrogates and too deep nesting end as validation errors.
    """

    async def read(request: Request) -> Model:
        media_type(request, JSON)
        gateway: Gateway = request.state.gateway
        return model.model_validate_json(await read_body(request, gateway.settings.max_body_bytes))

    return read


def described(model: type[BaseModel], *media_types: str) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its own body."""
    schema = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    return {"requestBody": {"required": True, "content": dict.fromkeys(media_types or (JSON,), schema)}}


def add_schemas(openapi: dict[str, Any], *models: type[BaseModel]) -> None:
    """Complete an OpenAPI document with the models that `described` refers to."""
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    openapi.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
