"""One answer as parts of a UI message. The same log gives the same parts, whatever was read of it at once."""

from __future__ import annotations

from typing import Any

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.deltas import AnswerReader
from octavo.dialects.openai.choices import finish_reason
from octavo.dialects.parsing import CallDelta, Delta, ReasoningDelta
from octavo.terms.messages import JobStatus, Terminal
from octavo.terms.models import Event
from octavo.terms.tools import as_plain_object

Part = dict[str, Any]

_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool-calls"}


class UiParts:
    """Turns events of a job, from its first, into parts. The message has the id of its job."""

    def __init__(self, job_id: str, parser: AnswerParser) -> None:
        self._job_id = job_id
        self._reader = AnswerReader(parser)
        self._parts: list[Part] = []
        self._begun = False
        self._open: tuple[str, str] | None = None  # text or reasoning, and its id
        self._opened = 0
        self._call: dict[str, str] | None = None
        self._called = False

    def add(self, event: Event) -> list[Part]:
        """The parts that an event adds."""
        if not self._begun:
            self._begun = True
            self._parts += [{"type": "start", "messageId": self._job_id}, {"type": "start-step"}]
        if event.chunk is not None:
            self._reader.add(event.chunk, self._take)
        if event.end is not None:
            self._end(event.end)
        taken, self._parts = self._parts, []
        return taken

    def _take(self, delta: Delta) -> None:
        if isinstance(delta, CallDelta):
            self._take_call(delta)
            return
        kind = "reasoning" if isinstance(delta, ReasoningDelta) else "text"
        if self._open is None or self._open[0] != kind:
            self._close()
            self._open = (kind, f"{kind}-{self._opened}")
            self._opened += 1
            self._parts.append({"type": f"{kind}-start", "id": self._open[1]})
        self._parts.append({"type": f"{kind}-delta", "id": self._open[1], "delta": delta.text})

    def _take_call(self, delta: CallDelta) -> None:
        if delta.name is not None and delta.id is not None:
            self._close()
            self._call = {"id": delta.id, "name": delta.name, "arguments": ""}
            self._called = True
            self._parts.append({"type": "tool-input-start", "toolCallId": delta.id, "toolName": delta.name})
        if self._call is not None and delta.arguments:
            self._call["arguments"] += delta.arguments
            self._parts.append(
                {"type": "tool-input-delta", "toolCallId": self._call["id"], "inputTextDelta": delta.arguments}
            )

    def _close(self, *, cut: bool = False) -> None:
        """End the part that is open. `cut`: the answer ended in it."""
        if self._open is not None:
            self._parts.append({"type": f"{self._open[0]}-end", "id": self._open[1]})
            self._open = None
        if self._call is not None:
            self._parts.append(_input_of(self._call, cut=cut))
            self._call = None

    def _end(self, end: Terminal) -> None:
        self._reader.end(self._take)
        self._close(cut=self._reader.finish_reason != "stop")
        if end.status is JobStatus.COMPLETED:
            reason = finish_reason(self._reader.finish_reason, called=self._called)
            reason = _REASONS.get(reason or "", "other")
            self._parts += [{"type": "finish-step"}, {"type": "finish", "finishReason": reason}]
        elif end.status is JobStatus.CANCELLED:
            self._parts.append({"type": "abort", "reason": "the job was cancelled"})
        else:
            message = end.error.message if end.error is not None else f"the job ended as {end.status.value}"
            self._parts.append({"type": "error", "errorText": message})


def _input_of(call: dict[str, str], *, cut: bool) -> Part:
    part = {"toolCallId": call["id"], "toolName": call["name"]}
    has_none = not (call["arguments"].strip() or cut)
    given = {} if has_none else as_plain_object(call["arguments"])
    if given is not None:
        return {"type": "tool-input-available", **part, "input": given}
    message = "the arguments are no JSON object"
    return {"type": "tool-input-error", **part, "input": call["arguments"], "errorText": message}
