"""Flags of a command, from the settings that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import BaseModel, SecretStr, ValidationError

from octavo.terms.problems import in_words


def flags_of(settings: type[BaseModel]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that gives a function of `**flags` one option for each setting, with its description as help. A flag
    that is not given is None: the environment decides."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = []
        for name, field in settings.model_fields.items():
            has_default = field.default_factory is None and field.default not in (None, ())
            default = f" [default: {field.default}]" if has_default else ""
            option = typer.Option(help=f"{field.description}{default}".replace("[", r"\["), show_default=False)
            kind: Any = _typed(field.annotation)
            annotation = Annotated[kind | None, option]
            keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            parameters.append(keyword)
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return function

    return decorate


def bad_flag(error: ValidationError) -> typer.BadParameter:
    """The first problem of settings, in terms of the flag that sets it."""
    first = error.errors(include_input=False)[0]
    name = str(first["loc"][0]).removeprefix("OCTAVO_").lower().replace("_", "-")
    return typer.BadParameter(in_words(first, f"--{name}"))


def _typed(annotation: Any) -> Any:
    """The type of a flag: lists are written with commas, and a secret is text until it is a setting."""
    kinds = get_args(annotation) or (annotation,)
    return str if SecretStr in kinds or get_origin(annotation) is tuple else annotation
