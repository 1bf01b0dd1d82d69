"""`octavo worker`: every setting is a flag, with the setting's own description as its help."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, NoReturn

import typer
from pydantic import ValidationError

from octavo.service.flags import flags_of
from octavo.terms.logs import printable
from octavo.terms.problems import in_words
from octavo_worker.assembly.settings import WorkerSettings
from octavo_worker.contract.options import WorkerOptions

_BAD_USAGE = 2


@flags_of(WorkerSettings)
def worker(**flags: Any) -> None:
    """Run a worker: claim jobs, generate, stream the tokens. Start as many as you like, on any number of hosts."""
    try:
        options = WorkerSettings(**{name: value for name, value in flags.items() if value is not None}).options()
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            flag = "--" + str(problem["loc"][0]).lower().removeprefix("octavo_").replace("_", "-")
            typer.echo(printable(in_words(problem, flag)), err=True)
        raise typer.Exit(_BAD_USAGE) from None
    if options.replicas > 1 or options.devices is not None:
        _run_replicas(options, flags)
    from octavo.terms.logs import configure_logging
    from octavo_worker.agent.failures import WorkerFailed, WrongSetting  # after the flags are known to be good
    from octavo_worker.agent.supervisor import serve

    configure_logging("octavo_worker", options.log_level, options.log_format)
    try:
        asyncio.run(serve(options))
    except WorkerFailed as failure:
        typer.echo(printable(f"octavo worker: {failure}"), err=True)
        sys.exit(_BAD_USAGE if isinstance(failure, WrongSetting) else 1)


def _run_replicas(options: WorkerOptions, flags: dict[str, Any]) -> NoReturn:
    from octavo_worker.assembly.replicas import ReplicasRefused, run_replicas

    try:
        sys.exit(run_replicas(options, flags))
    except ReplicasRefused as refused:
        typer.echo(printable(str(refused)), err=True)
        raise typer.Exit(_BAD_USAGE) from None


def main() -> None:
    """`python -m octavo_worker`."""
    typer.run(worker)
