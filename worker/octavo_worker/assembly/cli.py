"""`octavo worker`: every setting is a flag, with the setting's own description as its help."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from octavo.terms.logs import printable
from octavo_worker.assembly.settings import WorkerSettings

_BAD_USAGE = 2


def _flags_of(settings: type[BaseSettings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a function that takes `**flags` one option for each setting. None: not given, the environment decides."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = []
        for name, field in settings.model_fields.items():
            has_default = field.default_factory is None and field.default is not None
            default = f" [default: {field.default}]" if has_default else ""
            option = typer.Option(help=f"{field.description}{default}".replace("[", r"\["), show_default=False)
            kind: Any = field.annotation
            annotation = Annotated[kind | None, option]
            keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            parameters.append(keyword)
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return function

    return decorate


@_flags_of(WorkerSettings)
def worker(**flags: Any) -> None:
    """Run a worker: claim jobs, generate, stream the tokens. Start as many as you like, on any number of hosts."""
    try:
        settings = WorkerSettings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            flag = "--" + str(problem["loc"][0]).lower().removeprefix("octavo_").replace("_", "-")
            typer.echo(printable(f"{flag}: {problem['msg']}"), err=True)
        raise typer.Exit(_BAD_USAGE) from None
    if settings.replicas > 1 or settings.devices is not None:
        _run_replicas(settings, flags)
    from octavo_worker.agent.logs import configure_logging
    from octavo_worker.agent.supervisor import WorkerFailed, serve  # after the flags are known to be good

    configure_logging(settings.log_level, settings.log_format)
    try:
        asyncio.run(serve(settings))
    except WorkerFailed as failure:
        typer.echo(printable(f"octavo worker: {failure}"), err=True)
        sys.exit(1)


def _run_replicas(settings: WorkerSettings, flags: dict[str, Any]) -> NoReturn:
    from octavo_worker.assembly.replicas import ReplicasRefused, run_replicas

    try:
        sys.exit(run_replicas(settings, flags))
    except ReplicasRefused as refused:
        typer.echo(printable(str(refused)), err=True)
        raise typer.Exit(_BAD_USAGE) from None


def main() -> None:
    """`python -m octavo_worker`."""
    typer.run(worker)
