"""Trials of what lines must obey, where they are submitted: a bad grammar is told before anything is generated."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from octavo.terms.errors import Busy
from octavo.terms.models import JobRequest

if TYPE_CHECKING:
    from octavo.dialects.grammar.checks import GrammarChecks


class LineGrammars:
    """A context. Without the extra `grammar`, and where there is no time, workers alone try grammars."""

    def __init__(self) -> None:
        self._checks = _checks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._checks is not None:
            self._checks.close()

    async def check(self, request: JobRequest, field: str | None, *, tenant: str = "") -> None:
        """Raises GrammarError, about the `field` of the line, where no worker could follow a job's grammar."""
        if self._checks is not None:
            with suppress(Busy):
                await self._checks.check_request(request, field, tenant=tenant)


def _checks() -> GrammarChecks | None:
    try:
        from octavo.dialects.grammar.checks import GrammarChecks
    except ImportError:
        return None
    return GrammarChecks()
