"""From the arguments that people write to a validated `JobRequest`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, Unpack

from pydantic import TypeAdapter, ValidationError

from octavo.terms.conversation import Message
from octavo.terms.errors import InvalidRequest
from octavo.terms.fields import Priority, Tenant
from octavo.terms.models import JobRequest
from octavo.terms.problems import first_in_words, in_words
from octavo.terms.sampling import SamplingFields, SamplingParams
from octavo.terms.structured import GRAMMAR_KINDS, Grammar, of_keyword
from octavo.terms.tools import Tool, ToolChoice

C = TypeVar("C")
Prompt = str | Sequence[int]
_MANY_TURNS = 512
_MANY_TOKENS = 65_536
_TENANT: TypeAdapter[str] = TypeAdapter(Tenant)


class Asked(NamedTuple):
    """A request as it is submitted. `background`: its end is an event of a response."""

    request: JobRequest
    idempotency_key: str | None
    attachment: bytes = b""
    fingerprint: bytes = b""
    background: bool = False


class RequestFields(SamplingFields, total=False):
    """The fields of a job besides its prompt: those of `JobRequest`, those of `SamplingParams` or `sampling`, and a
    kind of grammar with its text, such as `json_schema={...}`, or `grammar`."""

    model: str
    messages: Iterable[Message | Mapping[str, Any]]
    sampling: SamplingParams
    grammar: Grammar | Mapping[str, Any] | None
    json_schema: Mapping[str, Any] | str | type[Any] | None
    json_object: bool
    regex: str | None
    choice: Sequence[str] | None
    lark: str | None
    tools: Iterable[Tool | Mapping[str, Any]]
    tool_choice: ToolChoice | str | Mapping[str, Any]
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]
    parsed: bool
    continue_final_message: bool
    priority: Priority
    add_special_tokens: bool
    timeout_s: float | None
    queue_timeout_s: float | None
    metadata: Mapping[str, str]
    notify: bool
    not_before: float | str | None


def build_request(prompt: Prompt | JobRequest | None, **fields: Unpack[RequestFields]) -> JobRequest:
    """A job request. Raises InvalidRequest naming the field that is wrong."""
    if isinstance(prompt, JobRequest):
        if fields:
            raise InvalidRequest(f"a JobRequest is complete: put {', '.join(sorted(fields))} into it")
        return prompt
    values: dict[str, Any] = dict(fields)
    sampling = {name: values.pop(name) for name in SamplingFields.__optional_keys__ & values.keys()}
    if sampling and "sampling" in values:
        raise InvalidRequest(f"give sampling or {', '.join(sorted(sampling))}, not both", param="sampling")
    if (grammar := _grammar(values)) is not None:
        values["grammar"] = grammar
    try:
        return JobRequest.model_validate(
            {"prompt": prompt, **values} | ({"sampling": SamplingParams.model_validate(sampling)} if sampling else {})
        )
    except ValidationError as error:
        raise invalid(error) from None  # the cause would quote the prompt


def _grammar(values: dict[str, Any]) -> Grammar | None:
    """Grammar of one of the keywords, which are taken out. Raises InvalidRequest."""
    given = {kind: values.pop(kind) for kind in GRAMMAR_KINDS if kind in values}
    found = {}
    for kind, value in given.items():
        try:
            found[kind] = of_keyword(kind, value)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{kind}: {error}", param=kind) from None
    wanted = {kind: grammar for kind, grammar in found.items() if grammar is not None}
    if len(wanted) + (values.get("grammar") is not None) > 1:
        names = ", ".join([*wanted, *(["grammar"] if "grammar" in values else [])])
        raise InvalidRequest(f"give one of {names}", param="grammar")
    return next(iter(wanted.values()), None)


async def write_down(write: Callable[[str, Asked], C], ids: Sequence[str], asked: Sequence[Asked]) -> list[C]:
    """The call of each job, written in a thread where that takes milliseconds, which an event loop should not wait
    for."""
    calls = map(write, ids, asked)
    return await asyncio.to_thread(list, calls) if any(_is_large(one.request) for one in asked) else list(calls)


def _is_large(request: JobRequest) -> bool:
    return len(request.messages or ()) > _MANY_TURNS or (
        isinstance(request.prompt, tuple) and len(request.prompt) > _MANY_TOKENS
    )


def checked_tenant(name: str) -> str:
    """Its colons would be those of key names. Raises InvalidRequest."""
    try:
        return _TENANT.validate_python(name)
    except ValidationError as error:
        raise InvalidRequest(first_in_words(error, "tenant"), param="tenant") from None


def invalid(error: ValidationError) -> InvalidRequest:
    """The first problem that pydantic found, without the input it found it in."""
    problem = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return InvalidRequest(in_words(problem, where), param=where or None)
