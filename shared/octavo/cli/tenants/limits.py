"""`octavo tenants`: limits of tenants, at the server."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from octavo.cli.console import AsJson, RedisUrl, print_json, value_of
from octavo.client.asynchronous import AsyncClient
from octavo.client.requests import checked_tenant
from octavo.queue.tenants.limits import LIMITS, WEIGHT_UNIT, Limited, Scope
from octavo.service.console import out
from octavo.terms.messages import JobStatus

app = typer.Typer(help="Show and change limits of tenants.", no_args_is_help=True)

_PAGE = 500
Tenant = Annotated[
    str, typer.Argument(help="Name of the tenant.", show_default=False, callback=value_of(checked_tenant))
]


@app.command("ls")
def ls(
    tenant: Annotated[str | None, typer.Argument(help="Only this tenant.", show_default=False)] = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List tenants that have limits, and these."""

    async def listed() -> dict[str, Limited]:
        async with AsyncClient(redis_url) as client:
            if tenant is not None:
                return {tenant: await client.tenants.limits(tenant)}
            found: dict[str, Limited] = {}
            while names := await client.tenants.limited(after=max(found, default=""), count=_PAGE):
                found |= {name: await client.tenants.limits(name) for name in names}
            return found

    found = asyncio.run(listed())
    if as_json:
        print_json({"tenants": [_shown(name, limited) for name, limited in found.items()]})
        return
    table = Table("tenant", "of", "limits", box=None, pad_edge=False)
    for name, limited in found.items():
        for scope, limits in limited.items():
            of = "all its jobs" if scope.kind == "tenant" else f"{scope.kind} {scope.name}"
            table.add_row(name, of, " ".join(f"{limit}={_written(limit, limits[limit])}" for limit in sorted(limits)))
    out.print(table if table.row_count else "no tenant has limits", soft_wrap=False)


@app.command("set")
def set_(
    tenant: Tenant,
    limits: Annotated[
        list[str],
        typer.Argument(help="Limits, as in requests_per_minute=600; `none` takes one away.", show_default=False),
    ],
    model: Annotated[str | None, typer.Option(help="Only for jobs for this model.", show_default=False)] = None,
    key: Annotated[
        str | None, typer.Option(help="Only for jobs of the API key with this id.", show_default=False)
    ] = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change limits of a tenant. They hold from the next job on, everywhere."""
    if model and key:
        raise typer.BadParameter("give --model or --key, not both")
    scope = Scope("model", model) if model else Scope("key", key) if key else Scope()
    values = dict(map(_read, limits))

    async def change() -> dict[str, int]:
        async with AsyncClient(redis_url) as client:
            return await client.tenants.limit(tenant, values, scope)

    now = asyncio.run(change())
    if as_json:
        print_json(_shown(tenant, {scope: now}))
    else:
        out.print(
            escape(f"{tenant}: " + (" ".join(f"{name}={_written(name, now[name])}" for name in now) or "no limits"))
        )


@app.command("suspend")
def suspend(
    tenant: Tenant,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel its jobs, too.")] = False,
    redis_url: RedisUrl = None,
) -> None:
    """Refuse new jobs of a tenant, until `octavo tenants set TENANT suspended=none`. Those that it has go on."""

    async def change() -> int:
        async with AsyncClient(redis_url) as client:
            await client.tenants.limit(tenant, {"suspended": 1})
            return await _cancel_all(client, tenant) if cancel else 0

    cancelled = asyncio.run(change())
    out.print(escape(f"{tenant}: suspended" + (f", {cancelled:,} jobs cancelled" if cancel else "")))


async def _cancel_all(client: AsyncClient, tenant: str) -> int:
    """Cancels all jobs that have not ended, of batches, too. How many."""
    cancelled = 0
    for of_batches in (False, True):
        for status in (JobStatus.QUEUED, JobStatus.RUNNING):
            after: str | None = None
            while page := await client.jobs(
                tenant=tenant, status=status, limit=_PAGE, after=after, of_batches=of_batches
            ):
                for job in page:
                    await client.cancel_own(job.id, tenant=tenant)
                cancelled, after = cancelled + len(page), page[-1].id
    return cancelled


def _read(text: str) -> tuple[str, int | None]:
    """Raises BadParameter."""
    name, _, value = text.partition("=")
    if name not in LIMITS:
        raise typer.BadParameter(f"{name!r} is no limit: {', '.join(LIMITS)}")
    try:
        return name, None if value == "none" else round(float(value) * WEIGHT_UNIT) if name == "weight" else int(value)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{name} is given as {name}=NUMBER, or {name}=none") from None


def _written(name: str, value: int) -> str:
    return f"{value / WEIGHT_UNIT:g}" if name == "weight" else str(value)


def _shown(tenant: str, limited: Limited) -> dict[str, Any]:
    scopes = [{"of": scope.kind, "name": scope.name or None, "limits": limits} for scope, limits in limited.items()]
    return {"tenant": tenant, "scopes": scopes}
