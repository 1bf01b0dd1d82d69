"""Fields of this package's models: limits, names and kinds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

MAX_BODY_BYTES = 1 << 20
MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 300
MAX_TOP_LOGPROBS = 20
MAX_SEQUENCES = 64
MAX_MEMBERS = 256  # of an object with named fields: far more than any has
MAX_METADATA = 16
LATEST = 253_402_300_799  # the last second of the year 9999
MAX_PINS = 64  # of a model: every worker reports on all of them in each heartbeat

Priority = Literal["high", "normal", "batch"]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31, strict=True)]
# Of a sequence one error is enough: a request of a megabyte could have a million.
TokenIds = Annotated[tuple[TokenId, ...], Field(fail_fast=True)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[\w.:/@+-]{1,200}$")]
Tenant = Annotated[str, StringConstraints(pattern=r"^[\w.@-]{1,64}$")]
PinName = Annotated[str, StringConstraints(pattern=r"^[\w.@-]{1,64}$")]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=255)]


def at_most(members: int) -> Callable[[Any], Any]:
    """A validator that refuses a larger object before its members are looked at: each could be an error of its own."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > members:
            raise ValueError(f"{len(value)} members, of which {members} are allowed: send fewer")
        return value

    return check


few_members = at_most(MAX_MEMBERS)
"""For objects with named fields."""


def as_seconds(value: Any) -> Any:
    """A time in ISO 8601 as seconds since the epoch; anything else as it is. Raises ValueError for none, or without a
    zone."""
    if not isinstance(value, str):
        return value
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("a time is seconds since the epoch, or as 2030-01-31T02:00:00Z") from None
    if at.tzinfo is None:
        raise ValueError("a time needs its zone, as in 2030-01-31T02:00:00Z")
    return at.timestamp()


def _as_number(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 11 else key


LogitBias = Annotated[
    dict[Annotated[TokenId, BeforeValidator(_as_number)], Annotated[float, Field(ge=-100.0, le=100.0)]],
    Field(max_length=MAX_LOGIT_BIAS),
    BeforeValidator(at_most(MAX_LOGIT_BIAS)),
]
"""By token id; JSON has the names of members as text."""

Metadata = Annotated[
    dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA), BeforeValidator(at_most(MAX_METADATA))
]


class Frozen(BaseModel):
    """An immutable message that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Requested(Frozen):
    """A part of a request. Each unknown name is an error, so an object of very many is refused as a whole."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_members(cls, value: Any) -> Any:
        return few_members(value)
