"""From the arguments that people write to a validated `JobRequest`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

from pydantic import TypeAdapter, ValidationError

from octavo.errors import InvalidRequest
from octavo.fields import Priority, Tenant
from octavo.models import JobRequest, Message
from octavo.sampling import SamplingFields, SamplingParams

Prompt = str | Sequence[int]
_TENANT: TypeAdapter[str] = TypeAdapter(Tenant)


class RequestFields(SamplingFields, total=False):
    """The fields of a job besides its prompt: those of `JobRequest`, and those of `SamplingParams` or `sampling`."""

    model: str
    messages: Iterable[Message | Mapping[str, str]]
    sampling: SamplingParams
    priority: Priority
    add_special_tokens: bool
    timeout_s: float | None
    queue_timeout_s: float | None
    metadata: Mapping[str, str]


def build_request(prompt: Prompt | JobRequest | None, **fields: Unpack[RequestFields]) -> JobRequest:
    """A job request. Raises InvalidRequest naming the field that is wrong."""
    if isinstance(prompt, JobRequest):
        if fields:
            raise InvalidRequest(f"a JobRequest is complete: put {', '.join(sorted(fields))} into it")
        return prompt
    values = dict(fields)
    sampling = {name: values.pop(name) for name in SamplingFields.__optional_keys__ & values.keys()}
    if sampling and "sampling" in values:
        raise InvalidRequest(f"give sampling or {', '.join(sorted(sampling))}, not both", param="sampling")
    try:
        return JobRequest.model_validate(
            {"prompt": prompt, **values} | ({"sampling": SamplingParams.model_validate(sampling)} if sampling else {})
        )
    except ValidationError as error:
        raise invalid(error) from None  # the cause would quote the prompt


def checked_tenant(name: str) -> str:
    """Its colons would be those of key names. Raises InvalidRequest."""
    try:
        return _TENANT.validate_python(name)
    except ValidationError as error:
        raise InvalidRequest(f"tenant: {invalid(error).message}", param="tenant") from None


def invalid(error: ValidationError) -> InvalidRequest:
    """The first problem that pydantic found, without the input it found it in."""
    problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return InvalidRequest(f"{where}: {problem['msg']}" if where else problem["msg"], param=where or None)
