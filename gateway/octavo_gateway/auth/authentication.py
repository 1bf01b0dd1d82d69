"""The way from a header to its caller."""

from __future__ import annotations

from octavo.client.keys import NO_SECRET
from octavo.terms.access.api_keys import KeyText
from octavo.terms.errors import NoSecret
from octavo_gateway.auth.cache import KeyCache, invalid_key
from octavo_gateway.auth.callers import DEFAULT_TENANT, Caller, operator_of, presented_key, unauthorized
from octavo_gateway.auth.keyring import Keyring


class Authentication:
    """All keys that a gateway takes: its own pairs, and those of the server. Without a secret there is no `cache`."""

    def __init__(self, keyring: Keyring, cache: KeyCache | None) -> None:
        self._keyring = keyring
        self._cache = cache

    @property
    def is_open(self) -> bool:
        """No key is asked for."""
        return self._keyring.is_open

    async def caller(self, authorization: str | None) -> Caller:
        """The sender by its `Authorization` header. Raises ApiError 401, NoSecret for a key of the server's where the
        gateway has no secret, and what `KeyCache.caller` raises."""
        if self._keyring.is_open:
            return operator_of(DEFAULT_TENANT)
        presented = presented_key(authorization or "")
        if not presented:
            raise unauthorized(
                "no API key: send 'Authorization: Bearer <key>' or 'X-Api-Key: <key>'", "missing_api_key"
            )
        if (found := self._keyring.find(presented)) is not None:
            return found
        key = KeyText.parse(presented.decode("latin-1"))
        if key is None:
            raise invalid_key()
        if self._cache is None:
            raise NoSecret(NO_SECRET)
        return await self._cache.caller(key)
