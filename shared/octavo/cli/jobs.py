"""`octavo jobs`: look at jobs, follow and cancel them, from any process."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from octavo.cli.console import AsJson, RedisUrl, print_json, print_text, value_of, when
from octavo.client.asynchronous import AsyncClient
from octavo.client.requests import checked_tenant
from octavo.queue.connection import default_url
from octavo.queue.jobs import locate, read_request
from octavo.service.console import err, out
from octavo.terms.errors import OctavoError
from octavo.terms.logs import printable
from octavo.terms.messages import JobStatus
from octavo.terms.models import DeadLetter, JobInfo
from octavo.terms.positions import Position

app = typer.Typer(help="List, show, follow, cancel and requeue jobs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="Id of the job.", show_default=False, callback=value_of(locate))]


_COLOURS = {
    JobStatus.QUEUED: "yellow",
    JobStatus.RUNNING: "cyan",
    JobStatus.COMPLETED: "green",
    JobStatus.FAILED: "red",
    JobStatus.CANCELLED: "dim",
    JobStatus.EXPIRED: "red",
}


@app.command("ls")
def ls(
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs in this state.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only this tenant's jobs.", callback=value_of(checked_tenant))
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most jobs to show.")] = 20,
    after: Annotated[str | None, typer.Option(help="Continue behind this job id.", callback=value_of(locate))] = None,
    of_batches: Annotated[bool, typer.Option("--of-batches", help="Jobs of batches, which are left out else.")] = False,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""

    async def listed() -> list[JobInfo]:
        async with AsyncClient(redis_url) as client:
            return await client.jobs(status=status, tenant=tenant, limit=limit, after=after, of_batches=of_batches)

    found = asyncio.run(listed())
    if as_json:
        print_json({"jobs": found})
        return
    out.print(_table(found) if found else "no jobs", soft_wrap=False)


def _table(jobs: list[JobInfo]) -> Table:
    """Tenants and priorities only where there are several: a line has 80 columns."""
    told = [name for name in ("tenant", "priority") if len({getattr(job, name) for job in jobs}) > 1]
    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("model", overflow="fold")
    for name in told:
        table.add_column(name, overflow="fold")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("created", no_wrap=True)
    for job in jobs:
        state = f"[{_COLOURS[job.status]}]{job.status}[/]"
        more = (str(getattr(job, name)) for name in told)
        table.add_row(job.id, state, job.model, *more, str(job.tokens), when(job.created_at))
    return table


@app.command("show")
def show(
    job_id: JobId,
    request: Annotated[
        bool,
        typer.Option("--request", help="What was asked for instead, prompt included: kept until the job ends well."),
    ] = False,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of a job, except its text."""

    async def info() -> JobInfo:
        async with AsyncClient(redis_url) as client:
            return await client.info(job_id)

    known = asyncio.run(read_request(redis_url or default_url(), job_id) if request else info())
    if as_json:
        print_json(known)
        return
    told = known.model_dump(mode="json", exclude_none=True, exclude_unset=request)
    table = Table(show_header=False, box=None, pad_edge=False)
    history = told.pop("history", ())
    for name, value in told.items():
        if value != {}:
            table.add_row(f"[dim]{name}[/]", Text(_shown(name, value)))
    for number, attempt in enumerate(history, 1):
        table.add_row(f"[dim]{'history' if number == 1 else ''}[/]", Text(printable(_sentence(attempt))))
    out.print(table, soft_wrap=False)


def _sentence(attempt: dict[str, Any]) -> str:
    """An attempt in words."""
    worker = attempt.get("worker", "a worker")
    begun = f" from {_shown('started_at', attempt['started_at'])}" if "started_at" in attempt else ""
    before = f" at token {attempt['tokens_before']}" if attempt.get("tokens_before") else ""
    if "ended_at" not in attempt:
        return f"{worker}{begun}{before}"
    seconds = f" after {attempt['ended_at'] - attempt['started_at']:.1f} s" if "started_at" in attempt else ""
    return f"{worker}{begun}{before}: {attempt['why']}{seconds} at token {attempt['tokens']}"


def _shown(name: str, value: Any) -> str:
    if name.endswith("_at"):
        return datetime.fromtimestamp(value).isoformat(" ", "milliseconds")
    if isinstance(value, dict):
        return printable(", ".join(f"{key}: {item}" for key, item in value.items()))
    return printable(str(value))


@app.command("tail")
def tail(
    job_id: JobId,
    after: Annotated[str, typer.Option(help="Tokens to skip, or the position of an event.")] = "0",
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print a job's text from any offset, and follow it to its end. Exit code 1 if the job did not complete."""
    try:
        Position.of(after)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--after") from None

    async def follow() -> JobStatus:
        status = JobStatus.RUNNING
        async with AsyncClient(redis_url) as client:
            async for event in client.events(job_id, after):
                if as_json:
                    print_json(event)
                else:
                    print_text(event.text, end="")
                if event.end is not None:
                    status = event.end.status
        return status

    status = asyncio.run(follow())
    if not as_json:
        print()
    if status is not JobStatus.COMPLETED:
        err.print(f"job {job_id} is {status}")
        raise typer.Exit(1)


@app.command("cancel")
def cancel(job_id: JobId, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Cancel a job. A running one stops within a step or two; one that has ended stays as it is."""

    async def ask() -> JobStatus:
        async with AsyncClient(redis_url) as client:
            return await client.cancel(job_id)

    status = asyncio.run(ask())
    if as_json:
        print_json({"id": job_id, "status": status})
    elif status is JobStatus.RUNNING:
        out.print(f"{job_id}: its worker was told to stop")
    else:
        out.print(f"{job_id}: {status}")


_Of = Annotated[str | None, typer.Option("--model", help="Only jobs of this model.")]
_OfTenant = Annotated[
    str | None, typer.Option("--tenant", help="Only this tenant's jobs.", callback=value_of(checked_tenant))
]
_Reason = Annotated[str | None, typer.Option("--reason", help="Only those for this: dead_lettered, job_damaged.")]


@app.command("dead")
def dead(
    limit: Annotated[int, typer.Option(min=1, help="Most jobs to show.")] = 20,
    model: _Of = None,
    tenant: _OfTenant = None,
    reason: _Reason = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List jobs that were given up, the latest first: engines crashed over them, or they were damaged."""

    async def listed() -> list[DeadLetter]:
        async with AsyncClient(redis_url) as client:
            return await client.dead_letters(limit, model=model, tenant=tenant, reason=reason)

    found = asyncio.run(listed())
    if as_json:
        print_json({"dead_letters": found})
        return
    table = Table("id", "reason", "attempts", "worker", "at", box=None, pad_edge=False)
    for letter in found:
        table.add_row(letter.job_id, letter.reason, str(letter.attempts), letter.worker or "", when(letter.at))
    out.print(table if found else "no job was given up", soft_wrap=False)


@app.command("requeue")
def requeue(
    job_id: Annotated[
        str | None, typer.Argument(help="Id of the job, without --all.", show_default=False, callback=value_of(locate))
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All, or those that the options name.")] = False,
    model: _Of = None,
    tenant: _OfTenant = None,
    reason: _Reason = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job that was given up once more, or many: new jobs with the same request and seed. Exit code 1 if one
    stays."""
    if every == (job_id is not None):
        raise typer.BadParameter("give the id of a job, or --all", param_hint="JOB_ID")

    async def again() -> tuple[dict[str, str], dict[str, OctavoError]]:
        async with AsyncClient(redis_url) as client:
            if job_id is not None:
                return {job_id: (await client.requeue(job_id)).id}, {}
            return await client.requeue_all(model=model, tenant=tenant, reason=reason)

    new, stays = asyncio.run(again())
    if as_json:
        one = {"id": new[job_id], "requeued": job_id} if job_id is not None else None
        print_json(one or {"requeued": new, "failed": {old: error.message for old, error in stays.items()}})
    elif job_id is not None:
        out.print(f"{job_id} goes on as {new[job_id]}: octavo jobs tail {new[job_id]}")
    else:
        out.print(f"{len(new)} submitted again")
    for old, error in stays.items():
        err.print(f"{old} stays: {printable(error.message)}")
    if stays:
        raise typer.Exit(1)


@app.command("purge")
def purge(
    every: Annotated[bool, typer.Option("--all", help="All that were given up.")] = False,
    model: _Of = None,
    tenant: _OfTenant = None,
    reason: _Reason = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take jobs that were given up off their list, and drop their requests: they cannot be requeued any more."""
    if not every and not (model or tenant or reason):
        raise typer.BadParameter("name a model, a tenant or a reason, or give --all", param_hint="--all")

    async def forget() -> int:
        async with AsyncClient(redis_url) as client:
            return await client.purge(model=model, tenant=tenant, reason=reason)

    purged = asyncio.run(forget())
    if as_json:
        print_json({"purged": purged})
    else:
        out.print(f"{purged} purged")
