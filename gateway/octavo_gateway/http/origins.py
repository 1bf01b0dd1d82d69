"""Origins of pages, and names of this gateway: requests that a foreign page makes through a user's browser are refused.

A browser tells the origin of a page in `Origin`; settings admit further ones. Without API keys pages of loopback
origins are admitted, too, since all programs of their machine are, and the `Host` counts: a public name may be made to
point here (DNS rebinding), and a page from there has the same origin as the gateway. A read token stands for itself:
no page has it that was not given it. See docs/decisions/16-local-pages.md.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_gateway.auth.keyring import Keyring
from octavo_gateway.errors import ApiError
from octavo_gateway.settings import GatewaySettings

CONTAINER_HOSTS = frozenset(
    f"{name}.internal"
    for name in ("host.docker", "gateway.docker", "host.containers", "host.minikube", "host.lima", "host.orb")
)
"""Names by which containers know their machine. No public name ends like these."""

_LOOPBACK = re.compile(
    r"https?://(localhost|([a-z0-9-]+\.)+localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?", re.ASCII
)
_OF_TOKENS = re.compile(r"/v1/jobs/[^/]+/(stream|log)")


class Origins:
    """The origins whose pages may use this gateway, besides its own."""

    def __init__(self, settings: GatewaySettings, keyring: Keyring) -> None:
        self._named = set(settings.cors_origins)
        self._with_loopback = keyring.is_open

    def admit(self, origin: str) -> bool:
        """True if pages of `origin` may."""
        if not self._named.isdisjoint({origin, "*"}):
            return True
        return self._with_loopback and _LOOPBACK.fullmatch(origin) is not None


class OriginCheck:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, keyring: Keyring) -> None:
        self._app = app
        self._is_open = keyring.is_open
        self._origins = Origins(settings, keyring)
        self._hosts = {name.lower() for name in (settings.host, *settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            await refusal.response(scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and not self._is_allowed_origin(origin, host) and not is_token_read(scope):
            return ApiError(
                403, "pages of this origin may not: OCTAVO_CORS_ORIGINS names those that may", code="foreign_origin"
            )
        if self._is_open and host and not self._is_allowed_host(host):
            return ApiError(
                403, "without API keys this name is not answered: OCTAVO_ALLOWED_HOSTS adds it", code="unknown_host"
            )
        return None

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        if self._origins.admit(origin):
            return True
        # Programs in containers have no origin, and a page of such a name may come from wherever the network says.
        return origin.partition("://")[2].lower() == host.lower() and _name_of(host) not in CONTAINER_HOSTS

    def _is_allowed_host(self, host: str) -> bool:
        """Names that no stranger can make point here: addresses, names without a dot, those of containers' machines,
        and those that are set."""
        name = _name_of(host)
        if name is None:
            return False
        return (
            "." not in name
            or name.endswith(".localhost")
            or name in self._hosts
            or name in CONTAINER_HOSTS
            or _is_address(name)
        )


class Cors:
    """ASGI middleware that tells browsers which pages may read an answer."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, keyring: Keyring, exposed: list[str]) -> None:
        self._app = app
        self._of_pages = _CorsOfPages(app, Origins(settings, keyring), exposed)
        self._of_tokens = CORSMiddleware(
            app, allow_origins=["*"], allow_methods=["GET", "HEAD"], allow_headers=["*"], expose_headers=exposed
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif is_token_read(scope) or (scope["method"] == "OPTIONS" and is_token_read({**scope, "method": "GET"})):
            await self._of_tokens(scope, receive, send)
        else:
            await self._of_pages(scope, receive, send)


class _CorsOfPages(CORSMiddleware):
    def __init__(self, app: ASGIApp, origins: Origins, exposed: list[str]) -> None:
        super().__init__(app, allow_methods=["*"], allow_headers=["*"], expose_headers=exposed)
        self._origins = origins

    def is_allowed_origin(self, origin: str) -> bool:
        return self._origins.admit(origin)


def is_token_read(scope: Scope) -> bool:
    """True if a read token alone decides on a request: whatever else it carries counts for nothing."""
    return (
        scope["method"] in ("GET", "HEAD")
        and _OF_TOKENS.fullmatch(scope["path"]) is not None
        and bool(presented_tokens(scope))
    )


def presented_tokens(scope: Scope) -> list[str]:
    """The read tokens in a request's query, empty ones too."""
    return QueryParams(scope["query_string"]).getlist("token")


def is_loopback(host: str) -> bool:
    """An address that this machine alone reaches."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _name_of(host: str) -> str | None:
    """The name or address in a `Host`; None for what has none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
