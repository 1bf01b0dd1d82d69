"""API keys. A request's tenant and role come from its key, never from a header of its own."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from octavo.client.requests import checked_tenant
from octavo.terms.errors import InvalidRequest
from octavo.terms.text_files import read_lines
from octavo_gateway.errors import ApiError
from octavo_gateway.settings import GatewaySettings

DEFAULT_TENANT = "default"


@dataclass(frozen=True)
class Caller:
    """The sender of a request. An operator sees the fleet: workers, hosts, counters of all tenants."""

    tenant: str
    is_operator: bool

    def shown_worker(self, worker_id: str) -> str:
        """A worker's id, which tells its host and process; to others than operators a name in its place."""
        return worker_id if self.is_operator else f"worker-{_digest(worker_id.encode()).hex()[:12]}"


class Keyring:
    """The keys that a gateway accepts, as digests. Without any, every request is of the operator `default`."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = (), operators: Collection[str] = ()) -> None:
        self._callers = [(_digest(key.encode()), Caller(tenant, tenant in operators)) for tenant, key in pairs]

    @classmethod
    def of(cls, settings: GatewaySettings) -> Keyring:
        """Raises ValueError as `load` does."""
        pairs = settings.api_keys.get_secret_value() if settings.api_keys else None
        return cls.load(pairs, settings.api_keys_file, settings.operators)

    @classmethod
    def load(cls, pairs: str | None, file: Path | None, operators: Collection[str] = ()) -> Keyring:
        """From `tenant:key,tenant:key` and from a file with one pair a line; `operators` are some of these tenants.
        Raises ValueError for anything else, a file without any included: it may have been cut, and must not admit every
        request. Its message has places and no words, since any of these may be a key."""
        found = _pairs((pairs or "").split(","), "pair", "OCTAVO_API_KEYS")
        if file is not None:
            if not file.exists():  # it may be a key, too, given in the wrong place
                raise ValueError("OCTAVO_API_KEYS_FILE names no file: give one with tenant:key a line")
            lines = ["" if line.startswith("#") else line for line in read_lines(file)]
            in_file = _pairs(lines, "line", str(file))
            if not in_file:
                raise ValueError(f"{file} has no API keys: write one tenant:key a line, or leave the file out")
            found += in_file
        tenants = {tenant for tenant, _ in found}
        for number, operator in enumerate(operators, 1):
            if operator not in tenants:
                raise ValueError(f"name {number} of OCTAVO_OPERATORS has no API key: add one, written tenant:key")
        return cls(found, operators)

    @property
    def is_open(self) -> bool:
        """No key is asked for."""
        return not self._callers

    def caller(self, authorization: str | None) -> Caller:
        """The sender by its `Authorization` header. Raises ApiError 401."""
        if self.is_open:
            return Caller(DEFAULT_TENANT, is_operator=True)
        key = _key_of(authorization or "")
        if not key:
            raise _unauthorized(
                "no API key: send 'Authorization: Bearer <key>' or 'X-Api-Key: <key>'", "missing_api_key"
            )
        presented = _digest(key)
        found = None
        for digest, caller in self._callers:  # always all of them: time must not tell which one matched
            if hmac.compare_digest(digest, presented):
                found = caller
        if found is None:
            raise _unauthorized("this API key is not valid here", "invalid_api_key")
        return found


def _key_of(authorization: str) -> bytes:
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


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _pairs(texts: Iterable[str], unit: str, source: str) -> list[tuple[str, str]]:
    """Tenants and their keys; empty texts count as places only. Raises ValueError."""
    found = []
    for number, text in enumerate(texts, 1):
        tenant, _, key = (part.strip() for part in text.partition(":"))
        if not text.strip():
            continue
        try:
            checked_tenant(tenant)
        except InvalidRequest:
            key = ""
        if not key:
            raise ValueError(
                f"{unit} {number} of {source} is not written tenant:key, the tenant 1 to 64 letters, digits and _.@-"
            )
        found.append((tenant, key))
    return found


def _unauthorized(message: str, code: str) -> ApiError:
    return ApiError(
        401, message, code=code, headers={"WWW-Authenticate": 'Bearer, Basic realm="octavo, the key as password"'}
    )


BEARER = HTTPBearer(auto_error=False, description="An API key, where the gateway has any.")  # for /docs


async def caller_of(request: Request) -> Caller:  # a plain function would cost every request a trip to a thread
    """The sender, of a page or of metrics. Clients of Anthropic's API send their key as `X-Api-Key`."""
    keyring: Keyring = request.state.gateway.keyring
    authorization, key = request.headers.get("authorization"), request.headers.get("x-api-key")
    return keyring.caller(f"Bearer {key}" if authorization is None and key is not None else authorization)


async def _caller(
    caller: Annotated[Caller, Depends(caller_of)],
    _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
) -> Caller:
    return caller


async def _tenant(caller: Annotated[Caller, Depends(_caller)]) -> str:
    return caller.tenant


async def require_operator(caller: Annotated[Caller, Depends(caller_of)]) -> None:
    """Raises ApiError 403."""
    if not caller.is_operator:
        raise ApiError(403, "this is for operators, whom OCTAVO_OPERATORS names by tenant", code="not_an_operator")


CurrentCaller = Annotated[Caller, Depends(_caller)]
CurrentTenant = Annotated[str, Depends(_tenant)]
