"""Limits of tenants: values, and the calls that read and change them. The scripts read them where a job changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack
import redis.asyncio

from octavo.queue.calls import Call, Watch
from octavo.queue.connection import answered
from octavo.queue.keys import Keys
from octavo.terms.errors import InvalidRequest

ScopeKind = Literal["tenant", "model", "key"]

_LETTERS: dict[str, ScopeKind] = {"*": "tenant", "m": "model", "k": "key"}
_EVERYWHERE: tuple[ScopeKind, ...] = ("tenant", "model", "key")
_BUCKETS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "batch_tokens_per_day")
WEIGHT_UNIT = 1000
"""A weight of 1, as it is stored."""

LIMITS: dict[str, tuple[ScopeKind, ...]] = {
    **{name + suffix: _EVERYWHERE for name in _BUCKETS for suffix in ("", "_capacity")},
    "max_tokens": _EVERYWHERE,
    **dict.fromkeys(("waiting", "running"), _EVERYWHERE),
    **dict.fromkeys(("waiting_bytes", "stored_bytes", "file_bytes", "weight", "suspended"), ("tenant",)),
}
"""Names of limits, and what may have each."""

_MOST = {"weight": 1000 * WEIGHT_UNIT, "suspended": 1}
_LEAST = {"weight": 1, "running": 1}
_LARGEST = 10**12


@dataclass(frozen=True)
class Scope:
    """A scope of limits: the tenant, its jobs for one model, or those of one API key."""

    kind: ScopeKind = "tenant"
    name: str = ""

    @classmethod
    def of(cls, text: str) -> Scope:
        """From the field of a tenant's hash. Raises ValueError for another one."""
        letter, _, name = text.partition(" ")
        if letter not in _LETTERS or (letter == "*") != (not name):
            raise ValueError(f"{text!r} is no scope of limits")
        return cls(_LETTERS[letter], name)

    @property
    def field(self) -> str:
        """The field of the tenant's hash."""
        return "*" if self.kind == "tenant" else f"{self.kind[0]} {self.name}"


Limited = dict[Scope, dict[str, int]]
"""Limits of one tenant."""


@dataclass(frozen=True)
class TenantCell:
    """All calls about limits on one cell."""

    keys: Keys = field(default_factory=Keys)
    watch: Watch | None = None

    def change(self, tenant: str, values: Mapping[str, int | None], scope: Scope | None = None) -> Call[dict[str, int]]:
        """Set limits in one scope, or take those away that are None. The limits of the scope now. Raises
        InvalidRequest."""
        asked, where = {}, scope or Scope()
        for name, value in values.items():
            if where.kind not in LIMITS.get(name, ()):
                raise InvalidRequest(f"{name} is no limit of a {where.kind}", code="unknown_limit", param=name)
            least, most = _LEAST.get(name, 0), _MOST.get(name, _LARGEST)
            if value is not None and not least <= value <= most:
                raise InvalidRequest(f"{name} must be from {least} to {most}", code="invalid_value", param=name)
            asked[name] = -1 if value is None else value
        packed = msgpack.packb({"tenant": tenant, "scope": where.field, "values": asked})
        return Call("limit_tenant", (self.keys.prefix,), (packed,), _parsed, tenant, self.watch)


async def read_limits(connection: redis.asyncio.Redis, keys: Keys, tenant: str) -> Limited:
    """All limits of a tenant."""
    async with answered():
        found: Any = await connection.hgetall(keys.limits(tenant))
    limits: Limited = {}
    for name, text in found.items():
        try:
            limits[Scope.of(name.decode())] = _parsed(text)
        except ValueError:
            continue  # something else wrote it
    return limits


async def limited_tenants(
    connection: redis.asyncio.Redis, keys: Keys, *, after: str = "", count: int = 100
) -> list[str]:
    """Tenants that ever had limits, by name, beyond `after`."""
    async with answered():
        names: Any = await connection.zrange(
            keys.limited, f"({after}" if after else "-", "+", bylex=True, offset=0, num=count
        )
    return [name.decode(errors="replace") for name in names]


def _parsed(text: bytes) -> dict[str, int]:
    """The limits that can be read, as the scripts read them."""
    pairs = (word.partition("=") for word in text.decode(errors="replace").split(" "))
    return {name: int(value) for name, _, value in pairs if name in LIMITS and value.isascii() and value.isdigit()}
