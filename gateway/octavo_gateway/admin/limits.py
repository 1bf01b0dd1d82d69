"""`/v1/organization/projects/{project_id}/rate_limits`: limits of a tenant, whole and for each model."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from octavo.client.tenants import Tenants
from octavo.queue.tenants.limits import Scope
from octavo.terms.errors import InvalidRequest
from octavo.terms.fields import Frozen
from octavo_gateway.errors import ApiError
from octavo_gateway.http.body import described, json_body
from octavo_gateway.state import Gateway

_PREFIX = "rl-"
_ALL = "*"  # no model has this name
_MOST_LISTED = 100
_FIELDS = {
    "max_requests_per_1_minute": "requests_per_minute",
    "max_tokens_per_1_minute": "tokens_per_minute",
    "batch_1_day_max_input_tokens": "batch_tokens_per_day",
}

router = APIRouter(
    prefix="/v1/organization/projects/{project_id}/rate_limits",
    tags=["administration"],
)


class LimitRequest(Frozen):
    """Limits to change. `octavo` has those that OpenAI has no name for; null takes one away."""

    max_requests_per_1_minute: int | None = Field(None, ge=0, strict=True)
    max_tokens_per_1_minute: int | None = Field(None, ge=0, strict=True)
    batch_1_day_max_input_tokens: int | None = Field(None, ge=0, strict=True)
    octavo: dict[str, Annotated[int, Field(strict=True)] | None] = Field(default_factory=dict)


@router.get("")
async def index(
    request: Request,
    project_id: str,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _MOST_LISTED,
) -> dict[str, Any]:
    """The limits of a tenant: of all of its jobs, and of those for each model. `400` for an `after` that is none."""
    tenants = _tenants(request)
    gateway: Gateway = request.state.gateway
    limited = await tenants.limits(project_id)
    models = {card.name for card in await gateway.client.models()}
    models |= {scope.name for scope in limited if scope.kind == "model"}
    scopes = [Scope(), *(Scope("model", name) for name in sorted(models))]
    ids = [_id_of(scope) for scope in scopes]
    if after is not None and after not in ids:
        raise InvalidRequest("after must be the id of a rate limit", code="invalid_value", param="after")
    start = 0 if after is None else ids.index(after) + 1
    data = [_shown(scope, limited.get(scope, {})) for scope in scopes[start : start + limit]]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": start + limit < len(scopes)}


@router.post("/{rate_limit_id:path}", openapi_extra=described(LimitRequest))
async def update(
    request: Request,
    project_id: str,
    rate_limit_id: str,
    asked: Annotated[LimitRequest, Depends(json_body(LimitRequest))],
) -> dict[str, Any]:
    """Change limits. They hold from the next job on, at every gateway. `404` for what is no id of a limit."""
    name = rate_limit_id.removeprefix(_PREFIX)
    if name == rate_limit_id or not name:
        raise ApiError(404, "no such rate limit: list them for their ids", code="rate_limit_not_found")
    scope = Scope() if name == _ALL else Scope("model", name)
    given = {name: getattr(asked, field) for field, name in _FIELDS.items() if field in asked.model_fields_set}
    return _shown(scope, await _tenants(request).limit(project_id, {**given, **asked.octavo}, scope))


def _tenants(request: Request) -> Tenants:
    gateway: Gateway = request.state.gateway
    return gateway.client.tenants


def _id_of(scope: Scope) -> str:
    return _PREFIX + (scope.name or _ALL)


def _shown(scope: Scope, limits: dict[str, int]) -> dict[str, Any]:
    """A limit as the API shows it; null: there is none."""
    shown = {field: limits.get(name) for field, name in _FIELDS.items()}
    return {"id": _id_of(scope), "object": "project.rate_limit", "model": scope.name or _ALL, **shown, "octavo": limits}
