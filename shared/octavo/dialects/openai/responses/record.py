"""The attachment of a stored response's job."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from octavo.dialects.openai.responses.items import Item
from octavo.terms.errors import InvalidRequest, MalformedMessage
from octavo.terms.fields import MAX_BODY_BYTES

_PREFIX = "resp_"


class Record(BaseModel):
    """All that a response is besides what its job generates: the fields that stay the same for its whole life, and the
    items that went in, those of the responses before it included. So a conversation goes on when its earlier responses
    have expired or were deleted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    created_at: int
    fields: dict[str, Any]
    items: list[Item]

    @property
    def is_stored(self) -> bool:
        """True if the record is kept with the job."""
        return self.fields["store"] is True

    def attachment(self) -> bytes:
        """The attachment of its job: nothing of a response that is not stored. Raises InvalidRequest."""
        return self.encode() if self.is_stored else b""

    def encode(self) -> bytes:
        """Raises InvalidRequest for more than can be attached to a job."""
        data = self.model_dump_json().encode()
        if len(data) > MAX_BODY_BYTES:
            raise InvalidRequest(
                f"the conversation has {len(data)} bytes with all its items, {MAX_BODY_BYTES} are stored at most: "
                "begin a new one, or send store: false",
                code="conversation_too_long",
                param="input",
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """Raises MalformedMessage."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            raise MalformedMessage("what is attached to the job is no response") from None


def response_id(job_id: str) -> str:
    return _PREFIX + job_id


def job_of(response: str) -> str:
    """The job of a response; empty for what cannot be the id of one."""
    return response.removeprefix(_PREFIX) if response.startswith(_PREFIX) else ""


def job_of_item(item_id: str) -> str:
    """The job that generated an output item; empty for what cannot be the id of one."""
    _, _, rest = item_id.partition("_")
    job_id, _, index = rest.rpartition("_")
    return job_id if index.isdecimal() else ""


def output_id(kind: str, job_id: str, index: int) -> str:
    """The id of output item `index`: the same at every reader."""
    return f"{kind}_{job_id}_{index}"
