"""API keys. The tenant of a request comes from its key, never from a header of its own."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from octavo.errors import InvalidRequest
from octavo.requests import checked_tenant
from octavo_gateway.errors import ApiError

DEFAULT_TENANT = "default"


class Keyring:
    """The keys a gateway accepts, kept as digests. Without any, every request is of the tenant `default`."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._tenants = [(_digest(key.encode()), tenant) for tenant, key in pairs]

    @classmethod
    def load(cls, pairs: str | None, file: Path | None) -> Keyring:
        """From `tenant:key,tenant:key` and from a file with one pair a line. Raises ValueError for anything else, a
        file without any included: it may have been cut, and must not admit every request."""
        found = [_pair(text) for text in (pairs or "").split(",") if text.strip()]
        if file is not None:
            lines = file.read_text(encoding="utf-8").splitlines()
            in_file = [_pair(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]
            if not in_file:
                raise ValueError(f"{file} has no API keys: write one tenant:key a line, or leave the file out")
            found += in_file
        return cls(found)

    def tenant(self, authorization: str | None) -> str:
        """The tenant of an `Authorization` header. Raises ApiError 401."""
        if not self._tenants:
            return DEFAULT_TENANT
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorized("no API key: send 'Authorization: Bearer <key>'", "missing_api_key")
        presented = _digest(key.strip().encode("latin-1"))  # the bytes as they came
        found = None
        for digest, tenant in self._tenants:  # always all of them: time must not tell which one matched
            if hmac.compare_digest(digest, presented):
                found = tenant
        if found is None:
            raise _unauthorized("this API key is not valid here", "invalid_api_key")
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _pair(text: str) -> tuple[str, str]:
    tenant, _, key = (part.strip() for part in text.partition(":"))
    try:
        checked_tenant(tenant)
    except InvalidRequest as error:
        raise ValueError("API keys are written tenant:key; a tenant is 1 to 64 of letters, digits and _.@-") from error
    if not key:
        raise ValueError(f"API keys are written tenant:key; tenant {tenant} has no key")
    return tenant, key


def _unauthorized(message: str, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})


_BEARER = HTTPBearer(auto_error=False, description="An API key, where the gateway has any.")  # for /docs


async def _tenant(  # a plain function would cost every request a trip to a thread
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
) -> str:
    keyring: Keyring = request.state.gateway.keyring
    return keyring.tenant(request.headers.get("authorization"))


CurrentTenant = Annotated[str, Depends(_tenant)]
