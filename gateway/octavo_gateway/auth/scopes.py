"""Scopes of routes: one table, checked before anything else of a request is looked at."""

from __future__ import annotations

from enum import Enum

from fastapi import Request

from octavo.terms.access.api_keys import Scope
from octavo_gateway.auth.callers import caller_of
from octavo_gateway.errors import ApiError
from octavo_gateway.http.origins import is_token_read


class Open(Enum):
    """Routes without a scope."""

    TO_ALL = "to all"
    TO_ANY_KEY = "to any key"


_PROJECT = "/v1/organization/projects/{project_id}"
_HOOK = "/v1/webhook_endpoints/{webhook_endpoint_id}"
_ACCOUNT = f"{_PROJECT}/service_accounts/{{service_account_id}}"

ROUTES: dict[tuple[str, str], Scope | Open] = {
    ("POST", "/v1/jobs"): Scope.JOBS_WRITE,
    ("GET", "/v1/jobs"): Scope.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}"): Scope.JOBS_READ,
    ("DELETE", "/v1/jobs/{job_id}"): Scope.JOBS_WRITE,
    ("GET", "/v1/jobs/{job_id}/result"): Scope.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/stream"): Scope.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/log"): Scope.JOBS_READ,
    ("POST", "/v1/jobs/{job_id}/token"): Scope.JOBS_READ,
    ("POST", "/v1/chat/completions"): Scope.JOBS_WRITE,
    ("POST", "/v1/completions"): Scope.JOBS_WRITE,
    ("POST", "/v1/messages"): Scope.JOBS_WRITE,
    ("POST", "/v1/messages/count_tokens"): Scope.JOBS_WRITE,
    ("POST", "/v1/responses"): Scope.JOBS_WRITE,
    ("GET", "/v1/responses/{response_id}"): Scope.JOBS_READ,
    ("DELETE", "/v1/responses/{response_id}"): Scope.JOBS_WRITE,
    ("POST", "/v1/responses/{response_id}/cancel"): Scope.JOBS_WRITE,
    ("GET", "/v1/responses/{response_id}/input_items"): Scope.JOBS_READ,
    ("POST", "/v1/chat"): Scope.JOBS_WRITE,
    ("GET", "/v1/chat/{chat_id:path}/stream"): Scope.JOBS_READ,
    ("DELETE", "/v1/chat/{chat_id:path}/stream"): Scope.JOBS_WRITE,
    ("POST", "/tokenize"): Scope.JOBS_WRITE,
    ("POST", "/detokenize"): Scope.JOBS_WRITE,
    ("POST", "/v1/files"): Scope.BATCHES,
    ("GET", "/v1/files"): Scope.BATCHES,
    ("GET", "/v1/files/{file_id}"): Scope.BATCHES,
    ("DELETE", "/v1/files/{file_id}"): Scope.BATCHES,
    ("GET", "/v1/files/{file_id}/content"): Scope.BATCHES,
    ("POST", "/v1/batches"): Scope.BATCHES,
    ("GET", "/v1/batches"): Scope.BATCHES,
    ("GET", "/v1/batches/{batch_id}"): Scope.BATCHES,
    ("POST", "/v1/batches/{batch_id}/cancel"): Scope.BATCHES,
    ("GET", "/v1/webhook_event_types"): Scope.WEBHOOKS,
    ("GET", "/v1/webhook_endpoints"): Scope.WEBHOOKS,
    ("POST", "/v1/webhook_endpoints"): Scope.WEBHOOKS,
    ("GET", _HOOK): Scope.WEBHOOKS,
    ("POST", _HOOK): Scope.WEBHOOKS,
    ("DELETE", _HOOK): Scope.WEBHOOKS,
    ("POST", f"{_HOOK}/rotate_secret"): Scope.WEBHOOKS,
    ("POST", f"{_HOOK}/test"): Scope.WEBHOOKS,
    ("GET", f"{_HOOK}/deliveries"): Scope.WEBHOOKS,
    ("POST", f"{_HOOK}/resend"): Scope.WEBHOOKS,
    ("GET", "/v1/models"): Open.TO_ANY_KEY,
    ("GET", "/v1/models/{name:path}"): Open.TO_ANY_KEY,
    ("GET", "/v1/workers"): Open.TO_ANY_KEY,
    ("GET", "/v1/workers/{worker_id}/memory"): Scope.OPERATOR,
    ("GET", "/metrics"): Scope.OPERATOR,
    ("GET", "/v1/stats"): Scope.OPERATOR,
    ("GET", "/v1/fleet/events"): Scope.OPERATOR,
    ("GET", "/v1/fleet/jobs/{job_id}"): Scope.OPERATOR,
    ("POST", "/v1/fleet/requeue"): Scope.OPERATOR,
    ("GET", "/v1/fleet/lanes"): Scope.OPERATOR,
    ("POST", "/v1/fleet/lanes"): Scope.OPERATOR,
    ("GET", "/v1/fleet/dead_letters"): Scope.OPERATOR,
    ("POST", "/v1/fleet/dead_letters"): Scope.OPERATOR,
    ("GET", "/v1/fleet/webhooks/{webhook_endpoint_id}"): Scope.OPERATOR,
    ("POST", "/v1/fleet/webhooks/{webhook_endpoint_id}/resend"): Scope.OPERATOR,
    ("GET", "/v1/fleet/controls"): Scope.OPERATOR,
    ("POST", "/v1/fleet/controls"): Scope.OPERATOR,
    ("GET", "/v1/organization/projects"): Scope.OPERATOR,
    ("POST", "/v1/organization/projects"): Scope.OPERATOR,
    ("GET", _PROJECT): Scope.ADMIN,
    ("POST", _PROJECT): Scope.OPERATOR,
    ("POST", f"{_PROJECT}/archive"): Scope.OPERATOR,
    ("GET", f"{_PROJECT}/service_accounts"): Scope.ADMIN,
    ("POST", f"{_PROJECT}/service_accounts"): Scope.ADMIN,
    ("GET", _ACCOUNT): Scope.ADMIN,
    ("POST", _ACCOUNT): Scope.ADMIN,
    ("DELETE", _ACCOUNT): Scope.ADMIN,
    ("POST", f"{_ACCOUNT}/api_keys"): Scope.ADMIN,
    ("GET", f"{_PROJECT}/api_keys"): Scope.ADMIN,
    ("GET", f"{_PROJECT}/api_keys/{{api_key_id}}"): Scope.ADMIN,
    ("POST", f"{_PROJECT}/api_keys/{{api_key_id}}"): Scope.ADMIN,
    ("DELETE", f"{_PROJECT}/api_keys/{{api_key_id}}"): Scope.ADMIN,
    ("POST", f"{_PROJECT}/api_keys/{{api_key_id}}/rotate"): Scope.ADMIN,
    ("GET", f"{_PROJECT}/rate_limits"): Scope.OPERATOR,
    ("POST", f"{_PROJECT}/rate_limits/{{rate_limit_id:path}}"): Scope.OPERATOR,
    ("GET", "/v1/organization/usage/completions"): Scope.USAGE,
    ("GET", "/openapi.json"): Open.TO_ANY_KEY,
    ("GET", "/docs"): Open.TO_ANY_KEY,
    ("GET", "/"): Open.TO_ALL,
    ("GET", "/livez"): Open.TO_ALL,
    ("GET", "/readyz"): Open.TO_ALL,
    ("GET", "/health"): Open.TO_ALL,
    ("GET", "/ping"): Open.TO_ALL,
    ("GET", "/version"): Open.TO_ALL,
}
"""By method and path; HEAD has the scope of GET."""

_FOR_OPERATORS = "this is for operators: keys with the scope operator, and tenants that OCTAVO_OPERATORS names"


async def authorize(request: Request) -> None:
    """A dependency of every route. Raises ApiError 403 for a key without the route's scope, and as `caller_of`."""
    method = "GET" if request.method == "HEAD" else request.method
    needed = ROUTES[method, request.scope["route"].path]
    if needed is Open.TO_ALL or is_token_read(request.scope):
        return
    caller = await caller_of(request)
    if isinstance(needed, Open) or caller.may(needed):
        return
    if needed is Scope.OPERATOR:
        raise ApiError(403, _FOR_OPERATORS, code="not_an_operator")
    raise ApiError(403, f"this needs a key with the scope {needed.value}", code="insufficient_scope")
