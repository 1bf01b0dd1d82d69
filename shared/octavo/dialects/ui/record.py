"""The attachment of a job that answers a chat, so that any gateway tells its stream alike."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.openai.requests import ChatCompletionRequest
from octavo.terms.errors import MalformedMessage
from octavo.terms.tools import Tool


class ChatRecord(BaseModel):
    """Parts of a request with which its answer is read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: tuple[Tool, ...] = ()
    parallel: bool = True

    @classmethod
    def of(cls, body: ChatCompletionRequest) -> ChatRecord:
        return cls(tools=body.offered, parallel=body.takes_several)

    def encode(self) -> bytes:
        """Empty for a chat without tools: then nothing is attached."""
        return self.model_dump_json().encode() if self.tools else b""

    @classmethod
    def decode(cls, data: bytes | None) -> ChatRecord:
        """Raises MalformedMessage."""
        try:
            return cls.model_validate_json(data) if data else cls()
        except ValidationError:
            raise MalformedMessage("what is attached to the job is no chat") from None

    def parser(self, job_id: str) -> AnswerParser:
        """Takes the answer apart."""
        return AnswerParser(job_id, self.tools, parallel=self.parallel)
