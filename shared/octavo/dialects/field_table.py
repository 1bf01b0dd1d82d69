"""Classes of a dialect's fields: those that act, hints, and those that are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from octavo.terms.errors import InvalidRequest


@dataclass(frozen=True)
class Refusal:
    """A field that would change the answer, and which octavo has nothing for. `advice` says what to do instead. The
    values that ask for nothing are taken: null, false, empty ones, and `neutral`."""

    advice: str
    neutral: tuple[Any, ...] = ()

    def takes(self, value: Any) -> bool:
        return asks_nothing(value) or value in self.neutral

    def error(self, param: str) -> InvalidRequest:
        return InvalidRequest(f"{param} is not supported: {self.advice}", code="unknown_parameter", param=param)


@dataclass(frozen=True)
class FieldTable:
    """The fields of one kind of body. Names are paths: dots between the names, places in lists left out.

    A field of `body` and of the objects in it acts, unless it is one of the `hints`. Hints change no answer: they are
    taken and named. `refused` would change it. A field that is in none of the three is a hint, too, or refused where a
    request is to be read strictly.
    """

    body: type[BaseModel]
    hints: frozenset[str]
    refused: Mapping[str, Refusal]

    @classmethod
    def of(cls, body: type[BaseModel], hints: Iterable[str], *refused: Mapping[str, Refusal]) -> FieldTable:
        """Later mappings go before earlier ones. What the body has is refused by the body alone."""
        known = {field.alias or name for name, field in body.model_fields.items()}
        merged = {name: refusal for mapping in refused for name, refusal in mapping.items()}
        left = {name: refusal for name, refusal in merged.items() if name not in known}
        return cls(body, frozenset(hints), left)


@dataclass(frozen=True)
class Dropping:
    """Metadata of a list: items that are hints themselves. `name` gives the name of one, None for all others."""

    name: Any


def asks_nothing(value: Any) -> bool:
    """True for null, false, and what is empty."""
    return value is None or value is False or value in ("", [], {})
