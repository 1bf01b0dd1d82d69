"""The client of API keys, service accounts and projects, for gateways and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

import redis.asyncio
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError, RedisError

from octavo.client.connection import QueueConnection
from octavo.client.key_looks import KeyLooks
from octavo.client.requests import checked_tenant
from octavo.queue.calls import Watch
from octavo.queue.connection import connect_listener
from octavo.queue.tenants import reading
from octavo.queue.tenants.keys import Account, ApiKey, Looked, NewKey, Project, TenantCell
from octavo.queue.tenants.names import ACCOUNT_ID, PROJECT_ID, TenantKeys, new_id
from octavo.terms.access.api_keys import KEY_ID, OF_TENANTS, KeyDigests, KeyText, Scope
from octavo.terms.errors import InvalidRequest, NoSecret, ServerUnavailable

MOST_CHARACTERS = 256  # of a name
MOST_MODELS = 100
_BACKOFF_S = 1.0
_PING_S = 15.0

T = TypeVar("T")


class KeyClient(QueueConnection):
    """API keys, service accounts and projects. `digests` are those of the service; what makes a secret needs them.
    Every method raises ServerUnavailable."""

    def __init__(
        self, url: str | None = None, digests: KeyDigests | None = None, *, watch: Watch | None = None
    ) -> None:
        super().__init__(url)
        self._digests = digests
        self.keys = TenantKeys()
        self._cell = TenantCell(self.keys, watch)
        self._looks = KeyLooks(self.redis, self._cell)
        self._listener: redis.asyncio.Redis | None = None

    async def close(self) -> None:
        """Disconnect."""
        await self._looks.close()
        if self._listener is not None:
            await self._listener.aclose()
        await super().close()

    async def create(
        self,
        tenant: str,
        name: str,
        *,
        account: str = "",
        scopes: frozenset[Scope] = OF_TENANTS,
        models: Sequence[str] = (),
        expires_s: int | None = None,
    ) -> tuple[ApiKey, KeyText]:
        """A new key: what the server has of it, and the key itself, which is nowhere else. Raises InvalidRequest."""
        key = KeyText.new(new_id(KEY_ID))
        new = NewKey(
            id=key.id,
            tenant=checked_tenant(tenant),
            name=checked_name(name),
            digest=self._digest(key),
            account=account,
            scopes=scopes or OF_TENANTS,
            models=checked_models(models),
            expires_s=checked_life(expires_s),
        )
        await self.run(self._cell.put(new))
        made = await self.key(key.id)
        if made is None:
            raise ServerUnavailable(f"the server has forgotten {key.id}: make another key")
        return made, key

    async def rotate(self, key_id: str, *, tenant: str = "", grace_s: int = 0) -> KeyText | None:
        """A new secret of a key; the one before holds for `grace_s` yet. None: no such key that could be used."""
        key = KeyText.new(key_id)
        return (
            key
            if await self.run(self._cell.rotate(key_id, self._digest(key), tenant=tenant, grace_s=grace_s))
            else None
        )

    async def change(
        self, key_id: str, *, tenant: str = "", expires_s: int | None = None, scopes: frozenset[Scope] | None = None
    ) -> bool:
        """Change when a key expires, from now on, and what it may do. False: no such key that could be used."""
        given = OF_TENANTS if scopes is not None and not scopes else scopes
        call = self._cell.change(key_id, tenant=tenant, expires_s=checked_life(expires_s), scopes=given)
        return await self.run(call)

    async def revoke(self, key_id: str, *, tenant: str = "") -> bool:
        """End a key for good. False: no such key, or one that was revoked before."""
        return await self.run(self._cell.revoke(key_id, tenant=tenant))

    async def touch(self, key_id: str) -> None:
        """Note that a key is used, once a minute at most."""
        await self.run(self._cell.touch(key_id))

    async def look(self, key_id: str) -> Looked | None:
        """A key as it is now, with the server's time."""
        with self.errors():
            return await self._looks.look(key_id)

    async def key(self, key_id: str, *, tenant: str | None = None) -> ApiKey | None:
        """A key, also one that was revoked. None: no such key of the tenant's."""
        async with self.asking() as connection:
            found = await reading.read_keys(connection, self.keys, [key_id])
        return next((key for key in found if tenant in (None, key.tenant)), None)

    async def list(self, tenant: str | None = None, *, limit: int, after: str | None = None) -> list[ApiKey]:
        """Keys by time, beyond the key `after`; revoked ones are left out."""
        with self.errors():
            return await reading.list_keys(self.redis, self.keys, tenant, limit=limit, after=after)

    async def any(self) -> bool:
        """True if the server keeps a key."""
        async with self.asking() as connection:
            return bool(await connection.exists(self.keys.key_index))

    async def create_account(self, tenant: str, name: str) -> Account:
        """A new service account. Raises InvalidRequest."""
        account_id = new_id(ACCOUNT_ID)
        if await self.run(self._cell.put_account(account_id, tenant, checked_name(name))) != "ok":
            raise InvalidRequest("this project is archived: it gets no service accounts", code="project_archived")
        made = await self.account(account_id, tenant=tenant)
        if made is None:
            raise ServerUnavailable(f"the server has forgotten {account_id}: make another service account")
        return made

    async def rename_account(self, account_id: str, name: str, *, tenant: str) -> bool:
        """False: an archived project, or another tenant's account."""
        return await self.run(self._cell.put_account(account_id, tenant, checked_name(name))) == "ok"

    async def drop_account(self, account_id: str, *, tenant: str) -> bool:
        """Forget a service account and revoke its keys. False: no such account of the tenant's."""
        return await self.run(self._cell.drop_account(account_id, tenant=tenant))

    async def account(self, account_id: str, *, tenant: str) -> Account | None:
        """None: no such account of the tenant's."""
        found = (await self.accounts_of([account_id])).get(account_id)
        return found if found is not None and found.tenant == tenant else None

    async def accounts_of(self, ids: Sequence[str]) -> dict[str, Account]:
        """Service accounts by id."""
        async with self.asking() as connection:
            return {one.id: one for one in await reading.read_accounts(connection, self.keys, ids)}

    async def accounts(self, tenant: str, *, limit: int, after: str | None = None) -> Sequence[Account]:
        """Service accounts by time, beyond the account `after`."""
        async with self.asking() as connection:
            return await reading.list_accounts(connection, self.keys, tenant, limit=limit, after=after)

    async def create_project(self, name: str, tenant: str | None = None) -> Project | None:
        """A new project; without `tenant` it has an id of its own. None: the tenant is a project already."""
        project_id = new_id(PROJECT_ID) if tenant is None else checked_tenant(tenant)
        if not await self.run(self._cell.put_project(project_id, checked_name(name), is_new=True)):
            return None
        return await self.project(project_id)

    async def rename_project(self, tenant: str, name: str) -> bool:
        """False: no such project."""
        return await self.run(self._cell.put_project(tenant, checked_name(name), is_new=False))

    async def archive(self, tenant: str) -> bool:
        """End a project: none of its keys is accepted from now on. False: no such project."""
        return await self.run(self._cell.archive(tenant))

    async def project(self, tenant: str) -> Project | None:
        """None: no such project."""
        async with self.asking() as connection:
            return next(iter(await reading.read_projects(connection, self.keys, [tenant])), None)

    async def projects(self, *, limit: int, after: str | None = None, archived: bool = False) -> Sequence[Project]:
        """Projects by time, beyond the project `after`."""
        with self.errors():
            return await reading.list_projects(self.redis, self.keys, limit=limit, after=after, archived=archived)

    async def changes(self) -> AsyncGenerator[str, None]:
        """Ids of keys that change, as they are heard, for ever. `*`, at the beginning and after every outage: any may
        have."""
        self._listener = self._listener or connect_listener(self.redis)
        while True:
            with suppress(RedisError, OSError):
                async with self._listener.pubsub() as channel:
                    await channel.subscribe(self.keys.changes)
                    async with aclosing(_heard(channel)) as heard:
                        async for key_id in heard:
                            yield key_id
            await asyncio.sleep(_BACKOFF_S)

    def check_secret(self) -> None:
        """Raises NoSecret where no key can be made."""
        self._known_digests()

    def _known_digests(self) -> KeyDigests:
        if self._digests is None:
            raise NoSecret(NO_SECRET)
        return self._digests

    def _digest(self, key: KeyText) -> str:
        return self._known_digests().of(key)


async def _heard(channel: PubSub) -> AsyncGenerator[str, None]:
    is_quiet = False
    while True:
        message = await channel.get_message(timeout=_PING_S)
        if message is None:
            if is_quiet:
                raise ConnectionError("the server does not answer a ping")
            await channel.ping()
        elif message["type"] == "subscribe":
            yield "*"
        elif message["type"] == "message":
            yield message["data"].decode(errors="replace")
        is_quiet = message is None


NO_SECRET = (
    "keys that the server keeps need a secret: set OCTAVO_SECRET or OCTAVO_SECRET_FILE, the same for all gateways"
)


def checked_name(name: str) -> str:
    """Raises InvalidRequest for an empty name, a long one, and one with control characters."""
    if not 1 <= len(name) <= MOST_CHARACTERS or not name.isprintable():
        message = f"a name has 1 to {MOST_CHARACTERS} printable characters"
        raise InvalidRequest(message, code="invalid_value", param="name")
    return name


def checked_models(models: Sequence[str]) -> tuple[str, ...]:
    """Raises InvalidRequest."""
    if len(models) > MOST_MODELS or not all(1 <= len(model) <= 200 for model in models):
        message = f"at most {MOST_MODELS} models, by names of 1 to 200 characters"
        raise InvalidRequest(message, code="invalid_value", param="models")
    return tuple(dict.fromkeys(models))


def checked_life(seconds: int | None) -> int | None:
    """Raises InvalidRequest for less than a second and for more than ten years."""
    if seconds is not None and not 1 <= seconds <= 315_360_000:
        message = f"{seconds} seconds: a key lasts 1 to 315360000, or for ever without"
        raise InvalidRequest(message, code="invalid_value", param="expires_in_seconds")
    return seconds
