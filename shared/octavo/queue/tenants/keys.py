"""API keys, service accounts and projects: as values, and every change of them as one script call, which may be
repeated. The server has digests of keys and no key."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgpack
import msgspec

from octavo.queue.calls import Call, Watch
from octavo.queue.tenants.names import TenantKeys
from octavo.terms.access.api_keys import OF_TENANTS, KeyDigests, KeyText, Scope
from octavo.terms.errors import InvalidRequest

MOST_KEYS = 10_000
"""API keys of one tenant, revoked ones left out."""

MOST_GRACE_S = 30 * 86_400
"""Longest time for which the secret before the last one may hold."""

_REVOKED_KNOWN_S = 30 * 86_400  # then a revoked key is one that never was
_TOUCHED_EVERY_MS = 60_000
_TENANT = re.compile(r"[\w.@-]{1,64}")  # what else stands there was not written here
KEY_FIELDS = ("tn", "name", "acct", "dg", "pdg", "pexp", "sc", "md", "exp", "ct", "used", "rev")

T = TypeVar("T")
Row = dict[str, str]


@dataclass(frozen=True)
class NewKey:
    """An API key as it was asked for. An empty `account` is none, no `models` are all."""

    id: str
    tenant: str
    name: str
    digest: str = field(repr=False)
    account: str = ""
    scopes: frozenset[Scope] = OF_TENANTS
    models: tuple[str, ...] = ()
    expires_s: int | None = None


@dataclass(frozen=True)
class ApiKey:
    """An API key as the server has it. Times are in seconds since the epoch, of the server's clock."""

    id: str
    tenant: str
    name: str
    account: str
    scopes: frozenset[Scope]
    models: tuple[str, ...]
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    revoked_at: float | None
    digest: str = field(repr=False)
    previous_digest: str | None = field(repr=False)
    previous_until: float

    def has(self, key: KeyText, digests: KeyDigests, now: float) -> bool:
        """True if a secret is this key's at a moment: the last one, or the one before it strictly until its deadline.
        Both are compared always."""
        is_last = digests.match(key, self.digest)
        is_previous = digests.match(key, self.previous_digest or self.digest)
        return is_last or (is_previous and self.previous_digest is not None and now < self.previous_until)


@dataclass(frozen=True)
class Looked:
    """An API key as a gateway finds it: with the server's time, in seconds, and whether its project is archived."""

    key: ApiKey
    now: float
    is_archived: bool


@dataclass(frozen=True)
class Account:
    """A service account, the owner of API keys."""

    id: str
    tenant: str
    name: str
    created_at: float


@dataclass(frozen=True)
class Project:
    """A tenant as administrators see it."""

    id: str
    name: str
    created_at: float
    archived_at: float | None = None


@dataclass(frozen=True)
class TenantCell:
    """All calls on one cell. `tenant` empty: any."""

    keys: TenantKeys = field(default_factory=TenantKeys)
    watch: Watch | None = None

    def put(self, new: NewKey) -> Call[None]:
        """Make a key known, and its tenant a project. The reply raises InvalidRequest for an unknown account, an
        archived project, and one key more than a tenant may have."""
        named = {
            "id": new.id,
            "tenant": new.tenant,
            "name": new.name,
            "account": new.account or None,
            "digest": new.digest,
            "scopes": _scopes_text(new.scopes),
            "models": msgspec.json.encode(new.models) if new.models else None,
            "expires_ms": None if new.expires_s is None else new.expires_s * 1000,
            "most": MOST_KEYS,
        }
        return self._call("key_put", _packed(named), parse=_check_put, of=new.tenant)

    def rotate(self, key_id: str, digest: str, *, tenant: str = "", grace_s: int = 0) -> Call[bool]:
        """Give a key a new secret; the one that it has holds for `grace_s` yet. False: no such key that could be used.
        Raises InvalidRequest."""
        if not 0 <= grace_s <= MOST_GRACE_S:
            raise InvalidRequest(f"{grace_s} seconds: an old secret holds for 0 to {MOST_GRACE_S}", param="grace_s")
        return self._call("key_rotate", key_id, tenant, digest, grace_s * 1000, parse=bool, of=tenant)

    def change(
        self, key_id: str, *, tenant: str = "", expires_s: int | None = None, scopes: frozenset[Scope] | None = None
    ) -> Call[bool]:
        """Change when a key expires, from now on, and what it may do. None: as it was. False: no such key that could
        be used."""
        asked = ("" if expires_s is None else expires_s * 1000, "" if scopes is None else _scopes_text(scopes))
        return self._call("key_change", key_id, tenant, *asked, parse=bool, of=tenant)

    def revoke(self, key_id: str, *, tenant: str = "") -> Call[bool]:
        """End a key for good. False: no such key, or one that was revoked before."""
        return self._call("key_revoke", key_id, tenant, _REVOKED_KNOWN_S, parse=bool, of=tenant)

    def touch(self, key_id: str) -> Call[bool]:
        """Note that a key is used, once a minute at most. True if it was noted."""
        return self._call("key_touch", key_id, _TOUCHED_EVERY_MS, parse=bool)

    def look(self, key_id: str) -> Call[Looked | None]:
        """A key as it is now. None: no such key, or it is damaged."""
        return self._call("key_look", key_id, *KEY_FIELDS, parse=lambda reply: _looked(key_id, reply))

    def put_account(self, account_id: str, tenant: str, name: str) -> Call[str]:
        """Make a service account known, or rename it: ok, archived, or unknown for another tenant's."""
        return self._call("account_put", account_id, tenant, name, parse=_text, of=tenant)

    def drop_account(self, account_id: str, *, tenant: str) -> Call[bool]:
        """Forget a service account and revoke its keys. False: no such account of the tenant's."""
        return self._call("account_drop", account_id, tenant, _REVOKED_KNOWN_S, parse=bool, of=tenant)

    def put_project(self, tenant: str, name: str, *, is_new: bool) -> Call[bool]:
        """Make a tenant a project, or rename one. False: it is one already, or none yet."""
        return self._call("project_put", tenant, name, int(is_new), parse=bool, of=tenant)

    def archive(self, tenant: str) -> Call[bool]:
        """End a project: none of its keys is accepted from now on. False: no such project."""
        return self._call("project_archive", tenant, parse=bool, of=tenant)

    def _call(self, name: str, *args: bytes | str | int, parse: Callable[[Any], T], of: str = "") -> Call[T]:
        return Call(name, (self.keys.prefix,), args, parse, of, self.watch)


def read_row(key_id: str, row: Row) -> ApiKey:
    """A key of what the server has. Raises KeyError and ValueError for what is none."""

    def seconds(name: str) -> float | None:
        return int(row[name]) / 1000 if name in row else None

    if not _TENANT.fullmatch(row["tn"]):
        raise ValueError("no tenant has this name")
    return ApiKey(
        id=key_id,
        tenant=row["tn"],
        name=row["name"],
        account=row.get("acct", ""),
        scopes=frozenset(Scope(word) for word in row["sc"].split()),
        models=tuple(msgspec.json.decode(row["md"], type=list[str])) if "md" in row else (),
        created_at=int(row["ct"]) / 1000,
        expires_at=seconds("exp"),
        last_used_at=seconds("used"),
        revoked_at=seconds("rev"),
        digest=row["dg"],
        previous_digest=row.get("pdg"),
        previous_until=seconds("pexp") or 0.0,
    )


def text_row(fields: tuple[str, ...], values: list[bytes | None]) -> Row:
    """Fields that are there, as text. Raises UnicodeDecodeError, a ValueError."""
    return {name: value.decode() for name, value in zip(fields, values, strict=True) if value is not None}


def _looked(key_id: str, reply: list[Any]) -> Looked | None:
    now, archived, *values = reply
    try:
        return Looked(read_row(key_id, text_row(KEY_FIELDS, values)), int(now) / 1000, bool(archived))
    except (KeyError, ValueError, msgspec.MsgspecError):
        return None


def _check_put(reply: bytes) -> None:
    """Raises InvalidRequest."""
    match _text(reply):
        case "ok":
            return
        case "archived":
            raise InvalidRequest("this project is archived: it gets no keys", code="project_archived")
        case "full":
            message = f"this tenant has {MOST_KEYS} keys: revoke those that nothing uses"
            raise InvalidRequest(message, code="too_many_keys")
        case _:
            raise InvalidRequest("this project has no such service account", code="account_not_found")


def _scopes_text(scopes: frozenset[Scope]) -> str:
    return " ".join(scope for scope in Scope if scope in scopes)


def _packed(named: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb({k: v for k, v in named.items() if v is not None}, use_bin_type=False)
    return packed


def _text(value: bytes) -> str:
    return value.decode()
