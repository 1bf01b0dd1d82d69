"""All commands in one application: our own, and those of installed packages. Each is imported when it is asked for."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from octavo.cli.listed import LISTED, Listed
from octavo.terms.problems import first_in_words

GROUP = "octavo.commands"
_WIDE = 120  # columns that a table of options needs: in a narrower one names are cut off


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="octavo",
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_octavo)
    return app


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"octavo {version('octavo')}")
        raise typer.Exit


def _octavo(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """The queue-native engine for language-model generation."""


class _Commands(TyperGroup):
    """The commands by name. The list of all has a line for each; what runs is loaded: `octavo run` must not pay for
    the libraries of workers."""

    def list_commands(self, ctx: Any) -> list[str]:
        others = (point.name for point in entry_points(group=GROUP))
        return list(dict.fromkeys([*LISTED, *others]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in LISTED:
            return _loaded(cmd_name)
        return TyperCommand(cmd_name, help=_line(cmd_name, LISTED[cmd_name]))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, left = super().resolve_command(ctx, args)  # raises with the nearest names if there is none
        return name, name and (_loaded(name) or listed), left


class _Command(TyperCommand):
    """A command that does not repeat arguments which it has no place for: behind a blank in the wrong place stands a
    key, or an address with its password. What is wrong with a value is said in this package's words."""

    def get_help(self, ctx: Any) -> str:
        if shutil.get_terminal_size().columns >= _WIDE:
            return super().get_help(ctx)
        self.rich_markup_mode = None  # a list, where no name is cut off
        return super().get_help(ctx).replace("\\[", "[")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_more, ctx.allow_extra_args = ctx.allow_extra_args, True
        try:
            left = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                error.message = first_in_words(error.__cause__)
            raise
        if ctx.args and not takes_more:
            count = f"{len(ctx.args)} argument{'' if len(ctx.args) == 1 else 's'}"
            ctx.fail(f"{count} more than there is a place for; quote what has blanks")
        return left


def _line(name: str, listed: Listed) -> str:
    return listed.line if _is_complete(listed) else escape(f"(not installed: {_hint(name)})")


def _is_complete(listed: Listed) -> bool:
    return all(name in sys.modules or find_spec(name) is not None for name in listed.needs)


def _hint(name: str) -> str:
    return f"pip install 'octavo[{name}]'"


def _loaded(name: str) -> Any:
    """The command of this name, None if there is none."""
    alone = typer.Typer(add_completion=False)
    try:
        _add(alone, name)
    except ModuleNotFoundError as error:
        _add_missing(alone, name, error.name or "a module")
    _never_repeat(alone)
    return typer.main.get_group(alone).commands.get(name)


def _add(app: typer.Typer, name: str) -> None:
    if name in LISTED and LISTED[name].module:
        command = getattr(import_module(LISTED[name].module), LISTED[name].attribute)
    else:
        point = next(iter(entry_points(group=GROUP, name=name)), None)
        if point is None:
            return
        command = point.load()
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


def _never_repeat(app: typer.Typer) -> None:
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _never_repeat(group.typer_instance)


def _add_missing(app: typer.Typer, name: str, module: str) -> None:
    """A command whose package is not installed says so."""
    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(name, help=escape(f"(not installed: {_hint(name)})"), context_settings=passed_on)
    def missing() -> None:
        typer.echo(f"octavo {name} needs {module}: {_hint(name)}", err=True)
        raise typer.Exit(1)
