"""The events of a response, a function of its record and of the log of its job."""

from __future__ import annotations

from typing import Any

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.openai.responses.output import Output
from octavo.dialects.openai.responses.record import Record, response_id
from octavo.dialects.openai.responses.tools import custom_tool, is_custom
from octavo.terms.messages import Chunk, JobError, JobStatus, Terminal, Usage
from octavo.terms.models import JobInfo
from octavo.terms.tools import Tool, as_json

Event = dict[str, Any]


class ResponseLog:
    """Reads the log of a response's job from its beginning and tells the events beyond number `after`.

    Numbers begin at 0 and have no gap. Every token whose text becomes certain has a delta of its own, however tokens
    were grouped into chunks, live, in the stream or in the result; so event and number depend on the tokens alone.
    Once the job has ended, `final` is the response, and `ended` what the job said of its end.
    """

    def __init__(self, record: Record, job_id: str, after: int = -1) -> None:
        self._record = record
        self._job_id = job_id
        self._after = after
        self._number = 0
        self._events: list[Event] = []
        custom = {tool["name"] for tool in record.fields["tools"] if is_custom(tool)}
        self._output = Output(job_id, _parser(record, job_id), self._emit, custom)
        self._finish_reason: str | None = None
        self._begun = False
        self.ended: Terminal | None = None
        self.final: Event = {}

    @property
    def next_number(self) -> int:
        return self._number

    def begin(self) -> list[Event]:
        """Events of an accepted job."""
        is_background = self._record.fields["background"]
        status = "queued" if is_background else "in_progress"
        self._emit("response.created", response=self.response(status))
        self._emit(f"response.{status}", response=self.response(status))
        self._begun = not is_background
        return self._take()

    def add(self, chunk: Chunk) -> list[Event]:
        """Events of more tokens."""
        self._start()
        self._output.add(chunk)
        self._finish_reason = chunk.finish_reason or self._finish_reason
        return self._take()

    def end(self, end: Terminal, finished_at: float | None) -> list[Event]:
        """Events of the job's end. `finished_at` is the server's time of it."""
        status = _ended_as(end.status, self._finish_reason)
        if end.status is JobStatus.COMPLETED:
            self._start()
        self._output.end(complete=status == "completed")
        self.ended = end
        self.final = self.response(
            status,
            completed_at=int(finished_at) if finished_at is not None and status == "completed" else None,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            error=_error_json(end.status, end.error) if status == "failed" else None,
            output=self._output.items,
            usage=_usage_json(end.usage, self._output.reasoning_tokens),
        )
        name = "incomplete" if status == "cancelled" else status  # there is no event for a cancellation
        self._emit(f"response.{name}", response=self.final)
        return self._take()

    def response(self, status: str, **known: Any) -> Event:
        """The response object. `known` is what its status brings."""
        return {
            "id": response_id(self._job_id),
            "object": "response",
            "created_at": self._record.created_at,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            **self._record.fields,
            "output": [],
            "usage": None,
            **known,
        }

    def _start(self) -> None:
        if not self._begun:
            self._begun = True
            self._emit("response.in_progress", response=self.response("in_progress"))

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._number > self._after:
            self._events.append({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1

    def _take(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken


def _parser(record: Record, job_id: str) -> AnswerParser:
    tools = [_tool(tool) for tool in record.fields["tools"] if is_custom(tool) or tool["parameters"] is not None]
    return AnswerParser(job_id, tools, parallel=record.fields["parallel_tool_calls"])


def _tool(shown: dict[str, Any]) -> Tool:
    if is_custom(shown):
        return custom_tool(shown["name"])
    return Tool(name=shown["name"], parameters=as_json(shown["parameters"]))


def status_now(info: JobInfo) -> str:
    """Status of a response whose job has not ended."""
    is_new = info.status is JobStatus.QUEUED and not info.tokens
    return "queued" if is_new else "in_progress"


def _ended_as(status: JobStatus, finish_reason: str | None) -> str:
    match status:
        case JobStatus.COMPLETED:
            return "incomplete" if finish_reason == "length" else "completed"
        case JobStatus.CANCELLED:
            return "cancelled"
        case _:
            return "failed"


def _error_json(status: JobStatus, error: JobError | None) -> dict[str, Any]:
    if error is None:
        return {"code": status.value, "message": f"the job ended as {status.value}"}
    return {"code": error.code, "message": error.message}


def _usage_json(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
