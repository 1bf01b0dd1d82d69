"""All paths of a gateway, and its description of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Security
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute

from octavo.dialects.anthropic.body import CountRequest, MessagesRequest
from octavo.dialects.openai.batch.objects import BatchRequest
from octavo.dialects.openai.requests import ChatCompletionRequest, CompletionRequest
from octavo.dialects.openai.responses.requests import ResponseRequest
from octavo.dialects.openai.webhooks import (
    EndpointRequest,
    EndpointUpdate,
    ResendRequest,
    RotateRequest,
    WebhookTestRequest,
)
from octavo.dialects.ui.body import UiChatRequest
from octavo.terms.models import JobRequest
from octavo_gateway import tokenizer
from octavo_gateway.admin import accounts, keys, limits, projects, usage
from octavo_gateway.admin.bodies import (
    AccountChange,
    AccountRequest,
    KeyChange,
    KeyRequest,
    KeyRotation,
    ProjectChange,
    ProjectRequest,
)
from octavo_gateway.admin.limits import LimitRequest
from octavo_gateway.anthropic import routes as anthropic
from octavo_gateway.auth import BEARER
from octavo_gateway.durable import routes as durable
from octavo_gateway.files import batches
from octavo_gateway.files import routes as files
from octavo_gateway.http.body import add_schemas
from octavo_gateway.jobs import routes as jobs
from octavo_gateway.jobs import tokens
from octavo_gateway.jobs.tokens import TokenRequest
from octavo_gateway.live import buttons, lanes
from octavo_gateway.live import routes as live
from octavo_gateway.live import webhooks as failing
from octavo_gateway.live.lanes import DeadLettersAction, LaneChange
from octavo_gateway.openai import chat, completions, models, responses
from octavo_gateway.operations import name_operations
from octavo_gateway.page import routes as pages
from octavo_gateway.status import health, workers
from octavo_gateway.tokenizer import DetokenizeRequest, TokenizeRequest
from octavo_gateway.ui import routes as ui
from octavo_gateway.webhooks import routes as webhooks

_PARTS = (
    *(jobs, tokens, durable, chat, completions, responses, files, batches, models, webhooks),
    *(ui, anthropic, tokenizer, workers, live, buttons, lanes, failing, health, pages),
    *(projects, accounts, keys, limits, usage),
)
_BODIES = (
    *(JobRequest, ChatCompletionRequest, CompletionRequest, UiChatRequest, MessagesRequest, CountRequest),
    *(TokenizeRequest, DetokenizeRequest, ResponseRequest, TokenRequest, BatchRequest, LimitRequest),
    *(ProjectRequest, ProjectChange, AccountRequest, AccountChange, KeyRequest, KeyChange, KeyRotation),
    *(EndpointRequest, EndpointUpdate, RotateRequest, WebhookTestRequest, ResendRequest),
    *(LaneChange, DeadLettersAction),
)
"""Bodies that routes read themselves, so that FastAPI does not know of them."""


def add_routes(app: FastAPI) -> None:
    """Make `app` answer what a gateway does."""
    for part in _PARTS:
        is_open = part in (health, pages)  # to all, or to a browser that asks its user for a key
        app.include_router(part.router, dependencies=[] if is_open else [Security(BEARER)])
        _answer_head(app, part.router.routes)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    _complete_openapi(app)


def methods_and_paths() -> list[tuple[str, str]]:
    """All that clients may ask for but HEAD, each with the pattern of its path."""
    routes = [route for part in _PARTS for route in part.router.routes if isinstance(route, APIRoute)]
    return sorted({(method, route.path) for route in routes for method in route.methods or () if method != "HEAD"})


def _answer_head(app: FastAPI, routes: Iterable[BaseRoute]) -> None:
    """HEAD on all that has GET, as HTTP has it: the server leaves the body off."""
    of_part = [route for route in routes if isinstance(route, APIRoute)]
    with_head = {route.path for route in of_part if "HEAD" in (route.methods or ())}
    for route in of_part:
        if "GET" in (route.methods or ()) and route.path not in with_head:
            app.add_api_route(
                route.path,
                route.endpoint,
                methods=["HEAD"],
                dependencies=route.dependencies,
                response_class=route.response_class,
                include_in_schema=False,
            )


def _complete_openapi(app: FastAPI) -> None:
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = generate()
            add_schemas(described, *_BODIES)
            name_operations(described)
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]
