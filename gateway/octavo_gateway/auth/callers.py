"""Callers: the senders of requests, by their keys."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from octavo.terms.access.api_keys import OF_TENANTS, Scope
from octavo_gateway.errors import ApiError

DEFAULT_TENANT = "default"


@dataclass(frozen=True)
class Caller:
    """The sender of a request. `key_id` is empty for a pair of the gateway's own, and without keys. `models`: those
    that its key is confined to, by the names that requests give; empty for all."""

    tenant: str
    scopes: frozenset[Scope] = OF_TENANTS
    key_id: str = ""
    models: frozenset[str] = frozenset()

    @property
    def is_operator(self) -> bool:
        """An operator sees the fleet: workers, hosts, counters of all tenants."""
        return Scope.OPERATOR in self.scopes

    def may(self, scope: Scope) -> bool:
        """True if its key has a scope."""
        return scope in self.scopes or self.is_operator

    def may_use(self, model: str) -> bool:
        """True if its key is not kept from a model."""
        return not self.models or model in self.models

    def check_model(self, model: str) -> None:
        """Raises ApiError 403."""
        if not self.may_use(model):
            message = f"this API key is confined to other models than {model[:200]!r}"
            raise ApiError(403, message, code="model_not_allowed", param="model")

    def shown_worker(self, worker_id: str) -> str:
        """A worker's id, which tells its host and process; to others than operators a name in its place."""
        return worker_id if self.is_operator else f"worker-{hashlib.sha256(worker_id.encode()).hexdigest()[:12]}"


def operator_of(tenant: str) -> Caller:
    """A caller that may do everything."""
    return Caller(tenant, frozenset(Scope))


def presented_key(authorization: str) -> bytes:
    """The key as its bytes came; of Basic, which browsers ask their users for, it is the password."""
    scheme, _, credentials = authorization.partition(" ")
    data = credentials.strip().encode("latin-1")
    if scheme.lower() == "bearer":
        return data
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(data, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def unauthorized(message: str, code: str) -> ApiError:
    """A 401 by which a browser asks its user for a key."""
    return ApiError(
        401, message, code=code, headers={"WWW-Authenticate": 'Bearer, Basic realm="octavo, the key as password"'}
    )


BEARER = HTTPBearer(auto_error=False, description="An API key, where the gateway has any.")  # for /docs


async def caller_of(request: Request) -> Caller:  # a plain function would cost every request a trip to a thread
    """The sender, of a page or of metrics. Clients of Anthropic's API send their key as `X-Api-Key`."""
    known: Caller | None = getattr(request.state, "caller", None)
    if known is None:
        authorization, key = request.headers.get("authorization"), request.headers.get("x-api-key")
        told = f"Bearer {key}" if authorization is None and key is not None else authorization
        known = request.state.caller = await request.state.gateway.authentication.caller(told)
    return known


async def _caller(
    caller: Annotated[Caller, Depends(caller_of)],
    _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
) -> Caller:
    return caller


async def _tenant(caller: Annotated[Caller, Depends(_caller)]) -> str:
    return caller.tenant


CurrentCaller = Annotated[Caller, Depends(_caller)]
CurrentTenant = Annotated[str, Depends(_tenant)]
