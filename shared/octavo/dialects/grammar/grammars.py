"""Grammars that the text of a sequence must follow, and whether they are sound. Needs the extra `grammar`.

The grammars are those of llguidance: an Earley parser over a lexer of regular-expression derivatives
(https://github.com/guidance-ai/llguidance). Its table of JSON Schema: docs/json_schema.md there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from octavo.dialects.grammar.keywords import advice, without_annotations
from octavo.terms.errors import Busy as Busy
from octavo.terms.errors import GrammarError as GrammarError
from octavo.terms.structured import MAX_GRAMMAR_BYTES
from octavo.terms.structured import Grammar as Grammar

VALIDATION_S = 5.0
TOO_SLOW = "grammar_too_slow"
_POSITION = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_EXCERPT = re.compile(r"\n *\d+ \| ")
_NAMED = ("type", "pattern", "$ref", "format")  # keywords whose value the library repeats in its message
_MEANT = {  # keywords that it means by the beginning of a message
    "oneOf constraints ": ("oneOf",),
    "min/maxProperties ": ("minProperties", "maxProperties"),
}
_WITHIN = re.compile(r"\n *while processing [^#\s]*(#\S*)")
_MOST_PLACES = 3


def library_limits() -> LLParserLimits:
    """The library's own bounds on work per step, with messages that do not repeat the grammar."""
    return LLParserLimits(verbose_errors=False)


def source(grammar: Grammar) -> str:
    """The grammar as the library reads it. `GrammarError` for what is malformed at first sight."""
    size = len(grammar.text.encode("utf-8", "surrogatepass"))
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"the grammar has {size} bytes: {MAX_GRAMMAR_BYTES} are allowed")
    if any("\ud800" <= character <= "\udfff" for character in grammar.text):
        raise GrammarError("the grammar is not valid Unicode: half a surrogate pair stands alone")
    match grammar.kind:
        case "json_schema":
            return _from_schema(grammar.text)
        case "json_object":
            return _from_schema('{"type": "object"}')
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            return _from_choice(grammar.text)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)
    raise GrammarError(f"{grammar.kind} is no kind of grammar")


def too_slow(limit_s: float) -> GrammarError:
    message = f"the grammar did not compile within {limit_s:g} s of a processor: make it simpler"
    return GrammarError(message, code=TOO_SLOW)


def refused(grammar: Grammar, message: str) -> GrammarError:
    """The error for what the library says, in its words."""
    message = message.partition("\n<state>")[0].strip()
    position = _POSITION.match(message)
    if (
        position is not None
    ):  # a regex and a choice, too, are Lark to the library, but of no place that the client knows
        message = _EXCERPT.split(message[position.end() :])[0].strip()
        place = f"line {position[1]}, column {position[2]}" if grammar.kind == "lark" else ""
        return GrammarError(message, place=place)
    if grammar.kind != "json_schema":
        return GrammarError(message)
    said = _WITHIN.split(message)[0]
    return GrammarError(advice(said) or said, place=_place(grammar.text, message))


def _from_schema(text: str) -> str:
    try:
        text = without_annotations(text)
        return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_flexible": False})
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not a JSON object: {error}") from None


def _from_choice(text: str) -> str:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the choices are not JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("the choices must be a JSON array of one or more strings")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(map(_literal, choices)))


def _literal(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise GrammarError("a choice is not valid Unicode: half a surrogate pair stands alone")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON leaves as it is, unlike Lark


def _place(text: str, message: str) -> str:
    """Pointers to the members that the message may mean; empty if it names none. The library says which keyword it does
    not take, and at most the definition where it stands."""
    try:
        found = [member[0] for member in _members(json.loads(text)) if _is_named(*member, message)]
    except (ValueError, RecursionError):
        return ""
    if within := _WITHIN.search(message):
        found = [pointer for pointer in found if pointer.startswith(f"{within[1]}/")] or [within[1]]
    others = [f"{len(found) - _MOST_PLACES} other places"] if len(found) > _MOST_PLACES else []
    return " or ".join([*found[:_MOST_PLACES], *others])


def _is_named(pointer: str, key: str, value: Any, message: str) -> bool:
    if message.startswith("Unimplemented keys: "):
        return json.dumps(key) in message
    if meant := next((keys for beginning, keys in _MEANT.items() if message.startswith(beginning)), None):
        return key in meant
    if "regex" in message and pointer.rpartition("/")[0].endswith("/patternProperties"):
        return _is_quoted(key, message)
    if key in _NAMED and isinstance(value, str):
        return _is_quoted(value.removeprefix("#"), message)
    return f"{key} (" in message or f"'{key}'" in message


def _is_quoted(value: str, message: str) -> bool:
    """As it stands, or as the library writes a pattern."""
    return bool(value) and (value in message or value.replace("/", "\\/").replace("\n", "\\n") in message)


def _members(value: Any, pointer: str = "#") -> Iterator[tuple[str, str, Any]]:
    """All members of all objects, with JSON pointers (RFC 6901, section 6)."""
    if isinstance(value, dict):
        items = [(str(key).replace("~", "~0").replace("/", "~1"), key, member) for key, member in value.items()]
    elif isinstance(value, list):
        items = [(str(index), "", member) for index, member in enumerate(value)]
    else:
        return
    for step, key, member in items:
        if isinstance(value, dict):
            yield f"{pointer}/{step}", key, member
        yield from _members(member, f"{pointer}/{step}")
