"""Schemas for a model that ends nothing by itself: what is left open in one is bounded, and stays what it allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from octavo.terms.structured import Grammar
from octavo.terms.tools import Tool

_MOST_ITEMS, _LARGEST = 4, 100
_ENDS_OF_TEXT = ("maxLength", "enum", "const", "pattern", "format")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const")
_COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
_OF_MANY = ("properties", "patternProperties", "$defs", "definitions")
_OF_SEVERAL = ("prefixItems", "anyOf", "oneOf")
_OF_ONE = ("items", "additionalProperties")


def brief_tool(tool: Tool, longest: int) -> Tool:
    """A tool whose arguments are brief."""
    with suppress(RecursionError):
        return tool.model_copy(update={"parameters": json.dumps(brief(tool.schema_of_parameters, longest))})
    return tool


def brief_grammar(grammar: Grammar | None, longest: int) -> Grammar | None:
    """A grammar whose texts are brief, if it is a schema."""
    if grammar is None or grammar.kind != "json_schema":
        return grammar
    with suppress(ValueError, RecursionError):  # what is wrong with it is said where it becomes a grammar
        return replace(grammar, text=json.dumps(brief(json.loads(grammar.text), longest)))
    return grammar


def brief(schema: Any, longest: int) -> Any:
    """A schema whose strings have at most `longest` characters, lists at most four items, and objects no properties but
    those that it names; whose numbers are whole, and up to 100. All that unless it says otherwise."""
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _within(name, value, longest) for name, value in schema.items()}
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if "string" in kinds and not any(name in schema for name in _ENDS_OF_TEXT):
        found["maxLength"] = max(longest, schema.get("minLength", 0))
    if {"integer", "number"} & set(kinds) and not any(name in schema for name in _BOUNDS):
        whole = ["integer" if kind == "number" else kind for kind in kinds]
        found |= {"type": whole[0] if len(whole) == 1 else whole, "minimum": 0, "maximum": _LARGEST}
    if "array" in kinds:
        found.setdefault("maxItems", max(_MOST_ITEMS, schema.get("minItems", 0)))
    if "object" in kinds and not any(name in schema for name in _COMBINING):
        found.setdefault("additionalProperties", False)
    return found


def _within(name: str, value: Any, longest: int) -> Any:
    if name in _OF_MANY and isinstance(value, Mapping):
        return {key: brief(item, longest) for key, item in value.items()}
    if name in _OF_SEVERAL and isinstance(value, list):
        return [brief(item, longest) for item in value]
    return brief(value, longest) if name in _OF_ONE else value
