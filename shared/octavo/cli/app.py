"""All commands in one application: our own, and those of installed packages."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from octavo.cli import batch, demo, doctor, jobs, prefix, run, top, up, workers
from octavo.cli.console import counted

GROUP = "octavo.commands"


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="octavo",
        help="The queue-native engine for language-model generation.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command("up")(up.up)
    app.command("run")(run.run)
    app.add_typer(jobs.app, name="jobs")
    app.add_typer(batch.app, name="batch")
    app.add_typer(prefix.app, name="prefix")
    app.command("top")(top.top)
    app.command("workers")(workers.workers)
    app.command("doctor")(doctor.doctor)
    app.command("demo")(demo.demo)
    for point in entry_points(group=GROUP):
        # Only the command that was asked for is imported: `octavo run` must not pay for the worker's libraries.
        if point.name in sys.argv[1:2] or sys.argv[1:2] in ([], ["-h"], ["--help"]):
            _add(app, point)
    _never_repeat(app)
    return app


class _Command(TyperCommand):
    """A command that does not repeat arguments which it has no place for: behind a blank in the wrong place stands a
    key, or an address with its password."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_more, ctx.allow_extra_args = ctx.allow_extra_args, True
        left = super().parse_args(ctx, args)
        if ctx.args and not takes_more:
            ctx.fail(f"{counted(len(ctx.args), 'argument')} more than there is a place for; quote what has blanks")
        return left


def _never_repeat(app: typer.Typer) -> None:
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _never_repeat(group.typer_instance)


def _add(app: typer.Typer, point: EntryPoint) -> None:
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        _add_missing(app, point.name, error.name or "a module")
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=point.name)
    else:
        app.command(point.name)(command)


def _add_missing(app: typer.Typer, name: str, module: str) -> None:
    """A command whose package is not installed says so, in the list of commands too."""
    hint = f"pip install 'octavo[{name}]'"
    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(name, help=escape(f"(not installed: {hint})"), context_settings=passed_on)
    def missing() -> None:
        typer.echo(f"octavo {name} needs {module}: {hint}", err=True)
        raise typer.Exit(1)
