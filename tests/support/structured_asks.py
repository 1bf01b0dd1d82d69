"""Requests for the `openai` package whose answers must have a form, and what came of them."""

from __future__ import annotations

import json
import random
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import openai
from chat_templates import DEMO
from generated_schemas import drawn
from jsonschema.validators import validator_for
from referencing import Registry
from tokenizers import Tokenizer

from octavo.dialects.strict_schema import strict

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 16}, "days": {"type": ["integer", "null"]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Ask:
    """Fields of a chat, or of a completion where they have a prompt. `schema` is that of the content; `tools` are those
    of arguments, by the names of the tools."""

    fields: dict[str, Any]
    schema: Any = None
    tools: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """The sum of a stream. `counts` are the tokens so far, of every chunk."""

    id: str = ""
    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish_reason: str | None = None
    counts: list[int] = field(default_factory=list)

    @property
    def said(self) -> tuple[Any, ...]:
        """The part of an answer that another job with the same seed has as well."""
        return self.content, self.reasoning, self.calls, self.finish_reason, max(self.counts, default=0)

    @property
    def job_id(self) -> str:
        return self.id.partition("-")[2]


async def streamed(ai: openai.AsyncOpenAI, ask: Ask) -> Answer:
    """Raises openai.OpenAIError, and AssertionError for a stream without an end."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    create: Any = ai.completions.create if "prompt" in ask.fields else ai.chat.completions.create
    answer = Answer()
    async with aclosing(await create(**ask.fields, stream=True, stream_options=options)) as chunks:
        async for chunk in chunks:
            answer.id = chunk.id
            if chunk.usage is not None:
                answer.counts.append(chunk.usage.completion_tokens)
            for choice in chunk.choices:
                _add(answer, choice)
    assert answer.finish_reason is not None, "the stream has no end"
    return answer


def _add(answer: Answer, choice: Any) -> None:
    answer.finish_reason = choice.finish_reason or answer.finish_reason
    if not hasattr(choice, "delta"):
        answer.content += choice.text
        return
    answer.content += choice.delta.content or ""
    answer.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
    for call in choice.delta.tool_calls or []:
        if call.function.name is not None:
            answer.calls.append([call.function.name, ""])
        answer.calls[call.index][1] += call.function.arguments or ""


class Unchecked(Exception):
    """The validator does not understand this schema."""


def is_valid(text: str, schema: Any) -> bool:
    """By the draft that the schema names. Raises Unchecked. No schema is loaded from elsewhere."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        return bool(kind(schema, registry=Registry(), format_checker=kind.FORMAT_CHECKER).is_valid(value))
    except Exception as error:  # of its own kinds: those of patterns, references, keywords of another draft
        raise Unchecked(f"{type(error).__name__}: {error}") from error


def obeys(answer: Answer, ask: Ask) -> bool:
    """True if a finished answer has the form that was asked for. Raises Unchecked."""
    calls = all(name in ask.tools and is_valid(arguments, ask.tools[name]) for name, arguments in answer.calls)
    return calls and (ask.schema is None or is_valid(answer.content, ask.schema))


def response_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def early_ends(number: int) -> dict[str, float]:
    """A bias of the bundled model towards the ends of strings, arrays and objects, for schemas that bound nothing: more
    of them by turns."""
    vocabulary = Tokenizer.from_file(str(DEMO / "tokenizer.json")).get_vocab()
    quote, bracket = ((25.0, 21.0), (20.0, 20.0))[number % 4 < 2]
    return {str(vocabulary['"']): quote, str(vocabulary["]"]): bracket, str(vocabulary["}"]): bracket}


def bound(number: int, schema: Any, model: str, **fields: Any) -> Ask:
    """A chat or a completion whose answer is of a schema."""
    fields |= {"model": model, "seed": number, "temperature": (0.0, 0.7, 1.0)[number % 3]}
    if number % 2:
        return Ask(fields | {"prompt": f"{number}: ", "extra_body": {"structured_outputs": {"json": schema}}}, schema)
    return Ask(fields | {"messages": _asked(number), "response_format": response_format(schema)}, schema)


def free(number: int, model: str) -> Ask:
    """A chat or a completion without any form."""
    fields = {"model": model, "seed": number, "max_tokens": 40 + number % 80, "temperature": (0.0, 0.9)[number % 2]}
    if number % 4 < 2:
        return Ask(fields | {"prompt": f"KING RICHARD {number}:\n"})
    return Ask(fields | {"messages": _asked(number)})


def maskbench(folder: Path, count: int) -> list[Any]:
    """Schemas of a folder of MaskBench's files, chosen by chance, the same every time."""
    paths = sorted(folder.glob("*.json"))
    return [json.loads(path.read_text())["schema"] for path in random.Random(7).sample(paths, count)]


def _asked(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Who is number {number}?"}]


def _tool(name: str, schema: Any, *, is_strict: bool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": is_strict}}


def long_streams(count: int, model: str) -> list[Ask]:
    """By turns: content of a schema, calls that must be made, one call by name, strict calls if the model likes."""
    short = [schema for schema in drawn(2 * count) if len(json.dumps(schema)) < 200]
    return [_long_stream(number, short[number % len(short)], model) for number in range(count)]


def _long_stream(number: int, drawn_one: Any, model: str) -> Ask:
    record = {
        "type": "object",
        "properties": {"who": PERSON, "what": drawn_one},
        "required": ["who", "what"],
        "additionalProperties": False,
    }
    fields: dict[str, Any] = {"model": model, "seed": number, "max_tokens": 400, "messages": _asked(number)}
    fields["temperature"] = (0.6, 1.0)[number % 2]
    if number % 2 == 0:
        schema = {"type": "array", "items": record, "minItems": 2, "maxItems": 4}
        return Ask(fields | {"response_format": response_format(schema), "extra_body": _thought(number)}, schema)
    kind = number // 2 % 3
    schemas = {"get_weather": WEATHER, "note": record}
    fields["tools"] = [_tool(name, schema, is_strict=kind == 2) for name, schema in schemas.items()]
    fields["tool_choice"] = ("required", {"type": "function", "function": {"name": "note"}}, "auto")[kind]
    fields["parallel_tool_calls"] = number % 4 == 1
    fields["extra_body"] = _thought(number)
    if kind == 2:
        schemas = {name: json.loads(strict(json.dumps(schema))) for name, schema in schemas.items()}
    return Ask(fields, tools=schemas)


def _thought(number: int) -> dict[str, Any]:
    """Thoughts end by themselves, at a budget, or are none."""
    return (
        {},
        {"thinking_token_budget": 5 + number % 40},
        {"chat_template_kwargs": {"enable_thinking": False}},
    )[number % 5 % 3]
