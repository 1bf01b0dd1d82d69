"""Fields of this package's models: limits, names and kinds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_BODY_BYTES = 1 << 20
MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 300
MAX_TOP_LOGPROBS = 20
MAX_SEQUENCES = 64
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


class Frozen(BaseModel):
    """An immutable message that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
