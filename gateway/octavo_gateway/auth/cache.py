"""Keys that the server keeps, as a gateway has them in memory: for a second, and until it hears of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from octavo.client.keys import KeyClient
from octavo.queue.tenants.keys import ApiKey, Looked
from octavo.terms.access.api_keys import KeyDigests, KeyText
from octavo.terms.errors import OctavoError, ServerUnavailable
from octavo_gateway.auth.callers import Caller, unauthorized
from octavo_gateway.errors import ApiError

KNOWN_S = 1.0
"""How long a key is kept, so that one that was revoked is refused also where the message of it was lost."""

MOST_KEYS, MOST_UNKNOWN = 16_384, 4_096
"""Keys in memory, and ids of none: these cannot drive out the former."""

_OLDEST_S = 2.0  # of an answer that counts: a server may be slow
_ATTEMPTS = 3
_TOUCHED_EVERY_S = 60.0
_NO_DIGEST = "0" * 64  # of a key that is none: it is compared all the same

Spawn = Callable[[Coroutine[Any, Any, Any]], object]


@dataclass(slots=True)
class _Entry:
    looked: Looked | None
    asked_at: float

    @property
    def server_now(self) -> float:
        """The server's time by now, or a moment later: deadlines hold strictly."""
        return (self.looked.now if self.looked is not None else 0.0) + monotonic() - self.asked_at


class KeyCache:
    """One a gateway process. `listen` runs beside it."""

    def __init__(self, client: KeyClient, digests: KeyDigests, spawn: Spawn) -> None:
        self._client = client
        self._digests = digests
        self._spawn = spawn
        self._keys: dict[str, _Entry] = {}
        self._unknown: dict[str, _Entry] = {}
        self._asking: dict[str, asyncio.Task[_Entry]] = {}
        self._touched: dict[str, float] = {}

    async def caller(self, key: KeyText) -> Caller:
        """The sender by a key. Raises ApiError 401, 403 where its project is archived, and ServerUnavailable."""
        entry = await self._entry(key.id)
        looked, now = entry.looked, entry.server_now
        if looked is None:
            for _ in ("last", "previous"):  # as for a key that there is: time tells nothing of ids
                self._digests.match(key, _NO_DIGEST)
            raise invalid_key()
        kept = looked.key
        if not kept.has(key, self._digests, now):
            raise invalid_key()
        if kept.revoked_at is not None:
            raise unauthorized("this API key was revoked: ask for another", "api_key_revoked")
        if kept.expires_at is not None and now >= kept.expires_at:
            raise unauthorized("this API key has expired: ask for another", "api_key_expired")
        if looked.is_archived:
            raise ApiError(403, "the project of this API key is archived", code="project_archived")
        self._touch(kept, now)
        return Caller(kept.tenant, kept.scopes, kept.id, frozenset(kept.models))

    def forget(self, key_id: str) -> None:
        """A key has changed; `*`: any may have. What is asked for at this moment does not count any more, either."""
        if key_id == "*":
            self._keys.clear()
            self._unknown.clear()
            self._asking.clear()
            return
        self._keys.pop(key_id, None)
        self._unknown.pop(key_id, None)
        self._asking.pop(key_id, None)

    async def listen(self) -> None:
        """Hear of changes for ever. While the server is away nothing is heard, and nothing is kept beyond a second."""
        async with aclosing(self._client.changes()) as changes:
            async for key_id in changes:
                self.forget(key_id)

    async def _entry(self, key_id: str) -> _Entry:
        entry = self._keys.get(key_id) or self._unknown.get(key_id)
        if entry is not None and monotonic() - entry.asked_at < KNOWN_S:
            return entry
        task = self._asking.get(key_id)
        if task is None:  # one for all requests that wait; none of them ends it by going away
            task = self._asking[key_id] = asyncio.create_task(self._ask(key_id))
            task.add_done_callback(lambda done: self._keep(key_id, done))
        return await asyncio.shield(task)

    async def _ask(self, key_id: str) -> _Entry:
        for _ in range(_ATTEMPTS):
            asked_at = monotonic()
            entry = _Entry(await self._client.look(key_id), asked_at)
            if monotonic() - asked_at < _OLDEST_S:
                return entry
        raise ServerUnavailable("the server takes seconds to say what it knows of a key")

    def _keep(self, key_id: str, done: asyncio.Task[_Entry]) -> None:
        if self._asking.get(key_id) is not done:  # forgotten meanwhile
            with suppress(asyncio.CancelledError):
                done.exception()
            return
        del self._asking[key_id]
        self._keys.pop(key_id, None)
        self._unknown.pop(key_id, None)
        if done.cancelled() or done.exception() is not None:
            return
        entry = done.result()
        known, most = (self._unknown, MOST_UNKNOWN) if entry.looked is None else (self._keys, MOST_KEYS)
        known[key_id] = entry
        if len(known) > most:
            del known[next(iter(known))]  # the one that was asked for first

    def _touch(self, key: ApiKey, now: float) -> None:
        """Notes the use of a key, in the background. The server takes no more than one note a minute from all gateways
        together."""
        moment = monotonic()
        if key.last_used_at is not None and 0 <= now - key.last_used_at < _TOUCHED_EVERY_S:
            return
        if moment - self._touched.get(key.id, -_TOUCHED_EVERY_S) < _TOUCHED_EVERY_S:
            return
        self._touched.pop(key.id, None)
        self._touched[key.id] = moment
        if len(self._touched) > MOST_KEYS:
            del self._touched[next(iter(self._touched))]
        self._spawn(self._note_use(key.id))

    async def _note_use(self, key_id: str) -> None:
        with suppress(OctavoError):  # it is noted the next time
            await self._client.touch(key_id)


def invalid_key() -> ApiError:
    """The one answer to a key that is none, whatever is wrong with it."""
    return unauthorized("this API key is not valid here", "invalid_api_key")
