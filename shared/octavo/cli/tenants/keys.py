"""`octavo keys`: API keys that the server keeps, made and ended at the server, without a gateway."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from octavo.cli.console import AsJson, RedisUrl, fail, print_json, value_of
from octavo.client.keys import KeyClient
from octavo.client.read_tokens import secret_for
from octavo.client.requests import checked_tenant
from octavo.queue.connection import default_url
from octavo.queue.tenants.keys import MOST_GRACE_S, ApiKey
from octavo.queue.tenants.names import is_id
from octavo.service.console import err, out
from octavo.terms.access.api_keys import KEY_ID, OF_TENANTS, KeyDigests, KeyText, Scope
from octavo.terms.logs import printable

app = typer.Typer(help="Make, list, rotate and revoke API keys that the server keeps.", no_args_is_help=True)

_MOST = 1000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

KeyId = Annotated[str, typer.Argument(help="Id of the key: key_...", show_default=False)]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key-file", help="File that the key is written to, for its owner alone, instead of being shown."),
]
Lasting = Annotated[str | None, typer.Option("--expires", help="Seconds, or 12h, 90d, after which it ends.")]


@app.command("create")
def create(
    tenant: Annotated[str, typer.Option("--tenant", help="Its tenant.", callback=value_of(checked_tenant))] = "default",
    name: Annotated[str, typer.Option("--name", help="Its name, for people.")] = "key",
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="A right of it, several times for more.  [default: all of a tenant's own]"),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="A model that it is confined to, several times for more.")
    ] = None,
    expires: Lasting = None,
    key_file: KeyFile = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once, here, and kept nowhere: the server has a digest. Needs the gateways' secret."""
    scopes = frozenset(scope) if scope else OF_TENANTS
    _check_target(key_file)

    async def made() -> tuple[ApiKey, KeyText]:
        async with _client(redis_url, secret=True) as client:
            return await client.create(tenant, name, scopes=scopes, models=model or (), expires_s=_seconds(expires))

    info, key = asyncio.run(made())
    _hand_over(info, key, key_file, as_json)


@app.command("rotate")
def rotate(
    key_id: KeyId,
    grace: Annotated[str, typer.Option(help="Seconds, or 12h, 7d, for which the secret before holds yet.")] = "0",
    key_file: KeyFile = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret, under the same id. Exit code 1 if there is no such key that could be used."""
    _check_id(key_id)
    _check_target(key_file)
    grace_s = _seconds(grace) or 0
    if grace_s > MOST_GRACE_S:
        raise typer.BadParameter(f"--grace: at most {MOST_GRACE_S // 86_400}d")

    async def rotated() -> tuple[ApiKey | None, KeyText | None]:
        async with _client(redis_url, secret=True) as client:
            key = await client.rotate(key_id, grace_s=grace_s)
            return await client.key(key_id), key

    info, key = asyncio.run(rotated())
    if info is None or key is None:
        raise _no_key(key_id)
    _hand_over(info, key, key_file, as_json)


@app.command("revoke")
def revoke(
    key_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of keys; none, or `-`: a line each of standard input.")
    ] = None,
    redis_url: RedisUrl = None,
) -> None:
    """End keys for good: every gateway refuses them within two seconds. A key itself, as it leaked, does for its id on
    standard input. Exit code 1 if one of them was none, or had been revoked."""
    given = key_ids if key_ids and key_ids != ["-"] else [line.strip() for line in sys.stdin if line.strip()]
    ids = [parsed.id if (parsed := KeyText.parse(one)) is not None and not key_ids else one for one in given]
    for one in ids:
        _check_id(one)

    async def ended() -> list[bool]:
        async with _client(redis_url) as client:
            return [await client.revoke(one) for one in ids]

    outcomes = asyncio.run(ended())
    for one, is_ended in zip(ids, outcomes, strict=True):
        (out if is_ended else err).print(f"{one}: {'revoked' if is_ended else 'no such key, or revoked before'}")
    if not all(outcomes):
        raise typer.Exit(1)


@app.command("ls")
def ls(
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only this tenant's.", callback=value_of(checked_tenant))
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most keys to show.")] = _MOST,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List keys that are not revoked."""

    async def listed() -> list[ApiKey]:
        async with _client(redis_url) as client:
            return await client.list(tenant, limit=limit)

    found = asyncio.run(listed())
    if as_json:
        print_json({"keys": [_told(key) for key in found]})
    else:
        out.print(_table(found) if found else "no keys", soft_wrap=False)


def _client(redis_url: str | None, *, secret: bool = False) -> KeyClient:
    url = redis_url or default_url()
    return KeyClient(url, KeyDigests(secret_for(url)) if secret else None)


def _seconds(text: str | None) -> int | None:
    """Raises BadParameter."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text and text[-1] in _UNITS else (text, "s")
    if not (number.isascii() and number.isdecimal() and len(number) <= 9):
        raise typer.BadParameter("a time is written 3600, 90m, 12h or 30d")
    return int(number) * _UNITS[unit]


def _check_id(key_id: str) -> None:
    """Raises BadParameter, which does not repeat it: it may be a key."""
    if not is_id(KEY_ID, key_id):
        raise typer.BadParameter("that is no id of a key: `octavo keys ls` shows them, and none is a key itself")


def _check_target(key_file: Path | None) -> None:
    """Raises BadParameter for a file that is there: the key in it may be in use."""
    if key_file is not None and key_file.exists():
        raise typer.BadParameter(f"--key-file: {key_file} is there already")


def _no_key(key_id: str) -> typer.Exit:
    return fail(f"no key {key_id} that could be used: octavo keys ls")


def _hand_over(info: ApiKey, key: KeyText, key_file: Path | None, as_json: bool) -> None:
    """The key, once: into a file that its owner alone may read, or on standard output."""
    if key_file is not None:
        descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{key.text}\n")
    if as_json:
        print_json({**_told(info), **({} if key_file is not None else {"value": key.text})})
        return
    err.print(f"{info.id} of {info.tenant}: {', '.join(sorted(info.scopes))}")
    if key_file is None:
        err.print("the key, which is shown this once:")
        print(key.text, flush=True)


def _told(key: ApiKey) -> dict[str, Any]:
    """A key without its digests."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "service_account": key.account or None,
        "scopes": [scope for scope in Scope if scope in key.scopes],
        "models": list(key.models),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
    }


def _table(keys: list[ApiKey]) -> Table:
    table = Table("id", "tenant", "name", "scopes", "expires", "last used", box=None, pad_edge=False)
    for key in keys:
        scopes = "tenant" if key.scopes == OF_TENANTS else " ".join(sorted(key.scopes))
        name = Text(printable(key.name))
        table.add_row(key.id, key.tenant, name, scopes, _day(key.expires_at), _day(key.last_used_at))
    return table


def _day(moment: float | None) -> str:
    return "never" if moment is None else datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M")
