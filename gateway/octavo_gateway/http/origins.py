"""Requests that a foreign page makes through a user's browser are refused.

A browser tells the origin of a page in `Origin`; CORS settings admit further ones. Without API keys the `Host` counts,
too: a public name may be made to point here (DNS rebinding), and a page from there has the same origin as the gateway.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_gateway.auth import Keyring
from octavo_gateway.errors import ApiError
from octavo_gateway.settings import GatewaySettings


class OriginCheck:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, keyring: Keyring) -> None:
        self._app = app
        self._is_open = keyring.is_open
        self._origins = set(settings.cors_origins)
        self._hosts = {name.lower() for name in (settings.host, *settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(Headers(scope=scope))):
            await refusal.response(scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and not self._is_allowed_origin(origin, host):
            return ApiError(
                403, "pages of this origin may not: OCTAVO_CORS_ORIGINS names those that may", code="foreign_origin"
            )
        if self._is_open and host and not self._is_allowed_host(host):
            return ApiError(
                403, "without API keys this name is not answered: OCTAVO_ALLOWED_HOSTS adds it", code="unknown_host"
            )
        return None

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        return origin.partition("://")[2].lower() == host.lower() or not self._origins.isdisjoint({origin, "*"})

    def _is_allowed_host(self, host: str) -> bool:
        """Names that no stranger can make point here: addresses, names without a dot, and those that are set."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        name = name.rstrip(".")
        return "." not in name or name.endswith(".localhost") or name in self._hosts or _is_address(name)


def is_loopback(host: str) -> bool:
    """An address that this machine alone reaches."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
