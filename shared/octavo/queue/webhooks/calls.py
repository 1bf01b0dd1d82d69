"""Every state change of an endpoint or a delivery as one script call, which may be repeated.

A try of a delivery has an owner by a lease and a random token, as a job has. A try whose lease ran out counts for
nothing: the event is sent once more, under the same id.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgpack

from octavo.queue.calls import Call, Watch
from octavo.queue.webhooks.keys import WebhookKeys
from octavo.terms.webhooks import MAX_ENDPOINTS, Outcome

T = TypeVar("T")


@dataclass(frozen=True)
class Try:
    """A delivery that its owner may try now. Times are seconds since the epoch, `tries` those before this one; the
    secret before `version` signs, too, until `old_until`. `trace` is the context of the trace of what it tells of."""

    endpoint_id: str
    event_id: str
    token: str
    tenant: str
    event_type: str
    of: str
    created_at: float
    tries: int
    url: str
    version: int
    old_until: float
    trace: str = ""


@dataclass(frozen=True)
class Tries:
    """Deliveries that a claim gives, and the server's time, in seconds since the epoch."""

    now: float
    due: Sequence[Try]


@dataclass(frozen=True)
class WebhookCell:
    """All calls of webhooks on one cell."""

    keys: WebhookKeys = field(default_factory=WebhookKeys)
    watch: Watch | None = None

    def put(
        self,
        endpoint_id: str,
        tenant: str,
        *,
        is_new: bool = False,
        name: str | None = None,
        url: str | None = None,
        event_types: Sequence[str] | None = None,
    ) -> Call[str]:
        """Make an endpoint known, or change what is set, which switches it on: ok, full (the tenant has as many as it
        may), or '' for none of the tenant's."""
        asked = {
            "id": endpoint_id,
            "tenant": tenant,
            "name": name,
            "url": url,
            "types": None if event_types is None else " ".join(event_types),
            "cap": MAX_ENDPOINTS if is_new else None,
        }
        packed = msgpack.packb({key: value for key, value in asked.items() if value is not None}, use_bin_type=False)
        return self._call("endpoint_put", packed, parse=_text, of=tenant)

    def rotate(self, endpoint_id: str, tenant: str, version: int, *, keep_s: int) -> Call[int]:
        """Let the secret after `version` sign, and that one too for `keep_s`. The version now; 0: no such endpoint."""
        return self._call("endpoint_rotate", endpoint_id, tenant, version, keep_s * 1000, parse=int, of=tenant)

    def drop(self, endpoint_id: str, tenant: str) -> Call[int]:
        """Forget an endpoint and some of its deliveries. How many are left; -1: no such endpoint of the tenant's."""
        return self._call("endpoint_drop", endpoint_id, tenant, parse=int, of=tenant)

    def claim(self, *, lease_ms: int, most: int) -> Call[Tries]:
        """Take what is due."""
        return self._call("delivery_claim", secrets.token_hex(16), lease_ms, most, parse=_tries)

    def commit(self, tried: Try, outcome: Outcome, *, pause_ms: int = 0, answer: str = "") -> Call[bool]:
        """A try is over. False if it is another owner's by now."""
        return self._call(
            "delivery_commit", tried.endpoint_id, tried.event_id, tried.token, outcome, pause_ms, answer,
            parse=lambda reply: _text(reply) == "ok",
        )  # fmt: skip

    def resend(self, endpoint_id: str, tenant: str, event_id: str = "") -> Call[int]:
        """Begin anew what failed to the end, or one event of it. How many; -1: no such endpoint of the tenant's, -2: it
        is switched off."""
        return self._call("delivery_resend", endpoint_id, tenant, event_id, parse=int, of=tenant)

    def _call(self, name: str, *args: bytes | str | int, parse: Callable[[Any], T], of: str = "") -> Call[T]:
        return Call(name, (self.keys.prefix,), args, parse, of, self.watch)


def _text(value: bytes) -> str:
    return value.decode()


def _tries(reply: list[Any]) -> Tries:
    return Tries(int(reply[0]) / 1000, [_try(row) for row in reply[1:]])


def _try(row: Sequence[Any]) -> Try:
    """Something else may have damaged it: then it has no type that there is."""
    *words, at, tries, url, version, old, trace = row
    endpoint, event, token, tenant, kind, of = (word.decode(errors="replace") for word in words)
    return Try(
        endpoint, event, token, tenant, kind, of, _number(at) / 1000, _number(tries), url.decode(errors="replace"),
        _number(version), _number(old) / 1000, trace.decode(errors="replace"),
    )  # fmt: skip


def _number(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        return 0
