"""`octavo clerk`: every setting is a flag; a flag not given comes from `OCTAVO_*` or the default."""

from __future__ import annotations

from typing import Any

import typer
from pydantic import ValidationError

from octavo.service.clerk.process import run_clerk
from octavo.service.clerk.settings import ClerkSettings
from octavo.service.flags import bad_flag, flags_of


@flags_of(ClerkSettings)
def clerk(**given: Any) -> None:
    """Work on batches: validate, submit, collect, finish. And deliver webhooks. `octavo gateway` starts one; more may
    run anywhere."""
    flags = {name: value for name, value in given.items() if value is not None}
    try:
        settings = ClerkSettings(**flags)
    except ValidationError as error:
        raise bad_flag(error) from None
    try:
        run_clerk(settings)
    except OSError as error:
        raise typer.BadParameter(f"--metrics-port: {error.strerror or error}") from None
