"""`octavo batch`: a file of requests through the queue, and safe to run again.

Every job gets an idempotency key made of the output's path and its request. A run that was interrupted is continued by
the same command: requests that the output already answers are skipped, jobs that went on meanwhile are collected,
nothing is generated twice. Lines may be inserted, moved and edited between two runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from octavo.cli import batches
from octavo.cli.console import WRONG_USAGE, AsJson, RedisUrl, counted, fail, print_json, value_of
from octavo.client.requests import checked_tenant
from octavo.dialects.ignored import Ignored
from octavo.service.batches.files import BatchFileError, read_lines
from octavo.service.batches.lines import BatchLine, parse_lines
from octavo.service.batches.run import MAX_WINDOW, BatchRun
from octavo.service.batches.target import open_target
from octavo.service.console import err
from octavo.terms.errors import ServerUnavailable
from octavo.terms.fields import Priority
from octavo.terms.logs import printable

app = typer.Typer(help="Files of requests: run one from here, or have the service run it.", no_args_is_help=True)

app.command("submit")(batches.submit)
app.command("status")(batches.status)
app.command("cancel")(batches.cancel)
app.command("fetch")(batches.fetch)


@app.command("run")
def run(
    source: Annotated[Path, typer.Argument(help="Requests, one JSON object a line.", exists=True, dir_okay=False)],
    target: Annotated[Path, typer.Argument(help="Where the answers go, in OpenAI's batch output format.")],
    model: Annotated[str, typer.Option(help="Model of lines that name none.")] = "demo",
    priority: Annotated[Priority, typer.Option(help="Class of lines that name none: high, normal or batch.")] = "batch",
    window: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_WINDOW, help="Most jobs outstanding at a time; by default twice what live workers run."
        ),
    ] = None,
    strict_fields: Annotated[
        bool, typer.Option(envvar="OCTAVO_STRICT_FIELDS", help="Refuse lines with fields that are unknown.")
    ] = False,
    tenant: Annotated[
        str, typer.Option(help="Tenant that the jobs count for.", callback=value_of(checked_tenant))
    ] = "default",
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run all requests of a file. Interrupted? Run the same command again: it goes on where it was.

    Understands OpenAI's batch lines and plain ones like {"prompt": "ROMEO:", "max_tokens": 64}. Answers are in order
    of completion; match them by custom_id (a plain line's is line-<number>). Exit code 1 if some lines failed; the
    next run tries those again, and answers lines that are new or have changed.
    """
    try:
        lines = parse_lines(read_lines(source), model, priority, strict=strict_fields)
        if twice := _repeated(line.custom_id for line in lines):
            raise fail(
                f"{source}: the custom_id {twice!r} stands on several lines; give each line its own", WRONG_USAGE
            )
        with open_target(target, lines) as (output, done), _progress(len(lines), skipped := len(done)) as advance:
            open_lines = [line for line in lines if line.id not in done]
            batch = BatchRun(str(target.resolve()), tenant, output, advance)
            try:
                with batch.grammars:
                    asyncio.run(batch.run(redis_url, open_lines, window))
            except (KeyboardInterrupt, ServerUnavailable):
                err.print(f"interrupted with {batch.finished} new answers in {target}; the same command goes on here")
                raise
    except BatchFileError as error:
        raise fail(error.message) from None
    except OSError as error:
        raise fail(f"cannot write {target}: {error.strerror or error}") from None
    _tell_ignored(lines)
    summary = {"lines": len(lines), "skipped": skipped, "failed": batch.failures}
    if as_json:
        print_json(summary)
    else:
        err.print(f"{counted(len(lines), 'line')}, {skipped} done before, {batch.failures} failed: {target}")
        if batch.first_failure is not None:
            err.print(Text(printable(f"{batch.first_failure[0]}: {batch.first_failure[1]}")))
    if batch.failures:
        raise typer.Exit(1)


def _tell_ignored(lines: Iterable[BatchLine]) -> None:
    ignored = Ignored()
    count = 0
    for line in lines:
        count += bool(line.ignored)
        for name in line.ignored:
            ignored.add(name)
    if ignored:
        err.print(Text(f"fields of {counted(count, 'line')} change nothing: {ignored.header()}"))


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    columns = (TextColumn("lines"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        task = progress.add_task("lines", total=total, completed=done)
        yield lambda: progress.advance(task)


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
