"""The `octavo` command.

Exit codes: 0 done, 1 something failed (a job, a line of a batch, a check), 2 wrong usage or a wrong value, 3 the server
cannot be reached, 130 interrupted, 143 ended by SIGTERM or SIGHUP.
"""

from __future__ import annotations

import sys

from octavo.terms.errors import InvalidRequest, OctavoError, ServerUnavailable, UnknownModel
from octavo.terms.logs import printable


def main() -> None:
    """Entry point of the `octavo` script."""
    try:
        from octavo.cli.app import build_app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("the octavo command needs typer and rich: pip install 'octavo[cli]'")
    try:
        build_app()()
    except OctavoError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(_exit_code(error))


def _exit_code(error: OctavoError) -> int:
    if isinstance(error, ServerUnavailable):
        return 3
    is_wrong_value = isinstance(error, InvalidRequest) and not isinstance(error, UnknownModel)
    return 2 if is_wrong_value else 1
