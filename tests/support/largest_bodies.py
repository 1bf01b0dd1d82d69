"""The largest bodies that the limits of a gateway allow, of every route that takes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgpack
import msgspec

from octavo.terms.fields import MAX_BODY_BYTES
from octavo_gateway.http.body import MAX_CONTAINERS, MAX_MEMBERS, MAX_VALUES

MODEL = "toy"
USER = {"role": "user", "content": "x"}
ONE = [USER]
STRING = {"type": "string"}
Made = Callable[[int], Any]


@dataclass(frozen=True)
class LargestBody:
    """`name` says what there is so much of."""

    path: str
    name: str
    data: bytes
    media_type: str = "application/json"


def names(count: int, value: Any = 0) -> dict[str, Any]:
    return {f"a{i}": value for i in range(count)}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


def schema(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": names(count, STRING)}


def named_format(count: int, strict: bool) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema(count), "strict": strict}}


def largest(path: str, name: str, made: Made) -> Iterator[LargestBody]:
    """Among the bodies that `made` makes for a count, the largest, and the largest that has no more values than a body
    may have: most are refused by their number already."""
    small, large = (_costs(made(count)) for count in (1000, 2000))
    growths = [(at_large - at_small) / 1000 for at_small, at_large in zip(small, large, strict=True)]
    by_bytes = _fitting(made, [growths[0], 0, 0, 0])
    by_values = _fitting(made, growths)
    yield LargestBody(path, name, msgspec.json.encode(made(by_bytes)))
    if by_values < by_bytes:
        yield LargestBody(path, f"{name}, as many as may be", msgspec.json.encode(made(by_values)))


def _costs(value: Any) -> tuple[int, int, int, int]:
    """Bytes, containers, members, values."""
    text = msgspec.json.encode(value)
    return len(text), text.count(b"{") + text.count(b"["), text.count(b":"), text.count(b",")


def _fitting(made: Made, growths: list[float]) -> int:
    """The largest count within those limits that grow, nearly."""
    limits = (MAX_BODY_BYTES - 4096, MAX_CONTAINERS - 64, MAX_MEMBERS - 64, MAX_VALUES - 64)
    grown = [(limit, growth, i) for i, (limit, growth) in enumerate(zip(limits, growths, strict=True)) if growth > 0]
    count = min(int(limit / growth) for limit, growth, _ in grown)
    while any(_costs(made(count))[i] > limit for limit, _, i in grown):
        count = int(count * 0.98)
    return count


SAMPLED: dict[str, Made] = {
    "names": names,
    "null names": lambda n: names(n, None),
    "metadata": lambda n: {"metadata": names(n, "")},
    "wrong metadata": lambda n: {"metadata": names(n)},
    "logit_bias": lambda n: {"logit_bias": {str(i): 0 for i in range(n)}},
    "names in logit_bias": lambda n: {"logit_bias": names(n)},
    "stop": lambda n: {"stop": ["a"] * n},
    "empty stop": lambda n: {"stop": [""] * n},
    "stop_token_ids": lambda n: {"stop_token_ids": [1] * n},
    "digits": lambda n: {"seed": "9" * n},
    "a model's name": lambda n: {"model": "m" * n},
}
FORMS: dict[str, Made] = {
    "response_format": lambda n: {"response_format": names(n)},
    "a schema": lambda n: {"response_format": named_format(n, strict=False)},
    "a strict schema": lambda n: {"response_format": named_format(n, strict=True)},
    "names in a schema": lambda n: {"response_format": {"type": "json_schema", "json_schema": names(n)}},
    "structured_outputs": lambda n: {"structured_outputs": names(n)},
    "choices": lambda n: {"structured_outputs": {"choice": ["a"] * n}},
    "a regex": lambda n: {"structured_outputs": {"regex": "(a|b)" * n}},
    "stream_options": lambda n: {"stream": True, "stream_options": names(n)},
}
TOOLS: dict[str, Made] = {
    "tools": lambda n: {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(n)]},
    "wrong tools": lambda n: {"tools": [0] * n},
    "names in a tool": lambda n: {"tools": [{"type": "function", "function": names(n)}]},
    "parameters": lambda n: {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema(n)}}]},
    "tool_choice": lambda n: {"tool_choice": names(n)},
    "template arguments": lambda n: {"chat_template_kwargs": names(n)},
    "template numbers": lambda n: {"chat_template_kwargs": {"a": [0] * n}},
    "template lists": lambda n: {"chat_template_kwargs": {"a": [[]] * n}},
}
CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}
CHAT: dict[str, Made] = {
    "messages": lambda n: {"messages": [{"role": "user", "content": ""}] * n},
    "wrong messages": lambda n: {"messages": [0] * n},
    "names in a message": lambda n: {"messages": [USER | names(n)]},
    "parts": lambda n: {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * n}]},
    "wrong parts": lambda n: {"messages": [{"role": "user", "content": [{"type": "text", "text": 0}] * n}]},
    "calls": lambda n: {"messages": [{"role": "assistant", "tool_calls": [CALL] * n}]},
    "text": lambda n: {"messages": [{"role": "user", "content": "a" * n}]},
    "escapes": lambda n: {"messages": [{"role": "user", "content": "\n" * n}]},
    "messages of a list": lambda n: {"messages": [[]] * n},
}
COMPLETION: dict[str, Made] = {
    "token ids": lambda n: {"prompt": [1] * n},
    "a wrong token id": lambda n: {"prompt": [1] * n + ["a"]},
    "prompts of token ids": lambda n: {"prompt": [[1] * (n // 256) for _ in range(256)]},
    "prompts": lambda n: {"prompt": ["a" * (n // 256)] * 256},
    "too many prompts": lambda n: {"prompt": ["a"] * n},
    "lists of token ids": lambda n: {"prompt": [[1]] * n},
    "a deep prompt": lambda n: {"prompt": [nested(min(n, 100))] * (n // 300)},
}
ITEM = {"role": "user", "content": ""}
RESPONSES: dict[str, Made] = {
    "items": lambda n: {"input": [ITEM] * n},
    "wrong items": lambda n: {"input": [0] * n},
    "names in an item": lambda n: {"input": [ITEM | names(n)]},
    "parts": lambda n: {"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * n}]},
    "calls": lambda n: {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * n},
    "thoughts": lambda n: {"input": [{"type": "reasoning", "summary": []}] * n},
    "references": lambda n: {"input": [{"type": "item_reference", "id": f"msg_{i}"} for i in range(n)]},
    "annotations": lambda n: {"input": [{**ITEM, "content": [{"type": "text", "text": "", "annotations": [0] * n}]}]},
    "text": lambda n: {"input": "x", "text": names(n)},
    "format": lambda n: {"input": "x", "text": {"format": names(n)}},
    "a schema": lambda n: {"input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": schema(n)}}},
    "reasoning": lambda n: {"input": "x", "reasoning": names(n)},
    "tools": lambda n: {"input": "x", "tools": [{"type": "function", "name": "f"}] * n},
    "names in a tool": lambda n: {"input": "x", "tools": [{"type": "function", "name": "f", **names(n)}]},
    "tool_choice": lambda n: {"input": "x", "tool_choice": names(n)},
    "include": lambda n: {"input": "x", "include": ["reasoning.encrypted_content"] * n},
    "wrong include": lambda n: {"input": "x", "include": ["a"] * n},
}
BLOCK = {"type": "text", "text": ""}
ANTHROPIC: dict[str, Made] = {
    "names": lambda n: {"messages": ONE, **names(n)},
    "messages": lambda n: {"messages": [{"role": "user", "content": ""}] * n},
    "blocks": lambda n: {"messages": [{"role": "user", "content": [BLOCK] * n}]},
    "names in a block": lambda n: {"messages": [{"role": "user", "content": [BLOCK | names(n)]}]},
    "calls": lambda n: {
        "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}] * n}]
    },
    "a call's input": lambda n: {
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": names(n)}]}
        ]
    },
    "results": lambda n: {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}] * n}]},
    "tools": lambda n: {"messages": ONE, "tools": [{"name": "f", "input_schema": {}}] * n},
    "wrong tools": lambda n: {"messages": ONE, "tools": [0] * n},
    "metadata": lambda n: {"messages": ONE, "metadata": names(n)},
    "cache_control": lambda n: {"messages": [{"role": "user", "content": [{**BLOCK, "cache_control": names(n)}]}]},
}
UI_CALL = {"type": "tool-f", "toolCallId": "c", "state": "output-available", "input": {}, "output": {}}
UI: dict[str, Made] = {
    "names": lambda n: {"messages": [{"role": "user", "parts": [{"type": "text", "text": "x"}]}], **names(n)},
    "messages": lambda n: {"messages": [{"role": "user", "parts": []}] * n},
    "wrong messages": lambda n: {"messages": [0] * n},
    "parts": lambda n: {"messages": [{"role": "user", "parts": [{"type": "text", "text": ""}] * n}]},
    "parts without a type": lambda n: {"messages": [{"role": "user", "parts": [{}] * n}]},
    "wrong parts": lambda n: {"messages": [{"role": "user", "parts": [0] * n}]},
    "calls": lambda n: {"messages": [{"role": "assistant", "parts": [UI_CALL] * n}]},
    "an output": lambda n: {"messages": [{"role": "assistant", "parts": [{**UI_CALL, "output": names(n)}]}]},
}
JOBS: dict[str, Made] = {
    "names": lambda n: {"prompt": "x", **names(n)},
    "sampling": lambda n: {"prompt": "x", "sampling": names(n)},
    "grammar": lambda n: {"prompt": "x", "grammar": names(n)},
    "choices": lambda n: {"prompt": "x", "grammar": {"kind": "choice", "text": ["a"] * n}},
    "metadata": lambda n: {"prompt": "x", "metadata": names(n, "")},
    "token ids": lambda n: {"prompt": [1] * n},
    "messages": lambda n: {"messages": [{"role": "user", "content": ""}] * n},
    "parts": lambda n: {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * n}]},
    "tool_choice": lambda n: {"messages": ONE, "tool_choice": names(n)},
    "tools": lambda n: {"messages": ONE, "tools": [{"name": "f"}] * n},
    "names in a tool": lambda n: {"messages": ONE, "tools": [{"name": "f", **names(n)}]},
    "template lists": lambda n: {"messages": ONE, "chat_template_kwargs": {"a": [[]] * n}},
}
TOKENIZE: dict[str, Made] = {
    "text": lambda n: {"prompt": "a" * n},
    "messages": lambda n: {"messages": [{"role": "user", "content": ""}] * n},
    "names": lambda n: {"prompt": "a", **names(n)},
    "tools": lambda n: {"messages": ONE, "tools": [0] * n},
}
DETOKENIZE: dict[str, Made] = {"token ids": lambda n: {"tokens": [65] * n}}

_MESSAGES = {"messages": ONE}
ROUTES: list[tuple[str, dict[str, Any], dict[str, Made]]] = [
    ("/v1/chat/completions", _MESSAGES, SAMPLED | FORMS | TOOLS | CHAT),
    ("/v1/completions", {"prompt": "x"}, SAMPLED | FORMS | COMPLETION),
    ("/v1/responses", {"input": "x"}, SAMPLED | RESPONSES),
    ("/v1/messages", {"max_tokens": 1}, ANTHROPIC),
    ("/v1/messages/count_tokens", {}, ANTHROPIC),
    ("/v1/chat", {"id": "c"}, UI),
    ("/v1/jobs", {}, JOBS),
    ("/tokenize", {}, TOKENIZE),
    ("/detokenize", {}, DETOKENIZE),
]
"""Paths, what every body of them has, and what one may have very many of."""


def body_of(path: str, name: str, count: int) -> dict[str, Any]:
    """A body with so many."""
    base, bodies = next((base, bodies) for route, base, bodies in ROUTES if route == path)
    return {"model": MODEL, **base, **bodies[name](count)}


def largest_bodies() -> Iterator[LargestBody]:
    """All of them."""
    for path, _, bodies in ROUTES:
        for name in bodies:
            yield from largest(path, name, partial(body_of, path, name))
    yield from _not_json()


def _not_json() -> Iterator[LargestBody]:
    path = "/v1/chat/completions"
    for name, piece in {"brackets": b"[", "short strings": b'"",', "quotes": b'\\"', "blanks": b" "}.items():
        yield LargestBody(path, f"{name} that are no JSON", b"[" + piece * ((MAX_BODY_BYTES - 1) // len(piece)))
    for name, job in {
        "token ids": {"prompt": [1] * (MAX_BODY_BYTES - 60)},
        "nested lists": {"prompt": [[]] * (MAX_BODY_BYTES - 60)},
        "names": {"prompt": "x", **names(100_000)},
    }.items():
        frame = msgpack.packb([1, "job", {"model": MODEL, **job}])
        yield LargestBody("/v1/jobs", f"{name} in msgpack", frame[:MAX_BODY_BYTES], "application/msgpack")
