"""Settings of a worker: `OCTAVO_*` in the environment, the same names as flags of `octavo worker`.

Their table is `octavo_worker.contract.options`; here it meets the environment.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args

import msgspec
from pydantic import Field, create_model, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from octavo.queue.connection import default_url
from octavo_worker.contract.options import ModelOptions, WorkerOptions, options_of

PROPOSERS = ("off", "ngram", "suffix")
NAMED = ("draft", "eagle")
"""Ways to guess by what lies in a folder."""


class _Environment(BaseSettings):
    """The environment from which the options of a worker are read, with their checks."""

    model_config = SettingsConfigDict(
        env_prefix="OCTAVO_", frozen=True, protected_namespaces=(), allow_inf_nan=False, env_ignore_empty=True
    )

    @field_validator("speculate", check_fields=False)
    @classmethod
    def _is_known(cls, value: str) -> str:
        kind, _, named = value.partition(":")
        if value in PROPOSERS or (kind in NAMED and named):
            return value
        if kind == "mtp":
            raise ValueError(
                "mtp is for checkpoints with layers that predict several tokens, which octavo's own decoder does not "
                "read; give eagle:FOLDER, draft:FOLDER or suffix"
            )
        known = ", ".join(PROPOSERS)
        raise ValueError(
            f"{value!r} is no way to guess tokens: use {known}, draft:FOLDER, a smaller model, or eagle:FOLDER, an "
            "EAGLE-3 head"
        )

    def options(self) -> WorkerOptions:
        """The options of the worker and of its engine."""
        flags = self.model_dump()
        own = {name: flags[name] for name in options_of(WorkerOptions)}
        return WorkerOptions(engine=ModelOptions.of_flags(flags["model"], flags), **own)


def _fields(table: type[msgspec.Struct]) -> dict[str, Any]:
    """Fields of settings, one for each option of a table."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(table)}
    fields: dict[str, Any] = {}
    for name, (kind, option) in options_of(table).items():
        default = defaults[name]
        if option.unit != 1:
            kind = float | None if NoneType in get_args(kind) else float
            default = None if default is None else default / option.unit
        bounds = {"gt": option.gt, "ge": option.ge, "le": option.le}
        given: dict[str, Any] = {bound: value for bound, value in bounds.items() if value is not None}
        fields[option.flag or name] = (kind, Field(default, description=option.text, **given))
    return fields


_WORKER = _fields(WorkerOptions)
_WORKER["redis_url"] = (
    str,
    Field(default_factory=default_url, repr=False, description=_WORKER["redis_url"][1].description),  # a password
)

WorkerSettings = create_model("WorkerSettings", __base__=_Environment, **_fields(ModelOptions), **_WORKER)
"""One worker: which model, how much of the machine, and how it behaves towards the queue."""
