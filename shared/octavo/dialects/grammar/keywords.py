"""Keywords of JSON Schema that the library refuses: which of them say nothing, and what to write instead of others."""

from __future__ import annotations

import json
import re
from typing import Any

_FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
"""Values of `format` that a text is held to. Any other is an annotation, as JSON Schema has it."""
_MAYBE = ('"format"', '"uniqueItems"', '"propertyNames"')
_VALUES = ("const", "enum", "default", "examples")  # which hold no schemas
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # whose keys are names
_UNIMPLEMENTED = re.compile(r'Unimplemented keys: (\[".*"\])')

INSTEAD = {
    "oneOf": "write anyOf, or tell its schemas apart by a required property with a const of its own in each",
    "uniqueItems": "leave it out, and bound the list with maxItems; of a few values, list the arrays with enum",
    "propertyNames": "write patternProperties with the pattern of the names, and additionalProperties: false",
    "not": "say what is allowed, with enum, anyOf, a pattern or bounds",
    "contains": "write items, or prefixItems for the first ones",
    "minContains": "write items, or prefixItems for the first ones",
    "maxContains": "write items, or prefixItems for the first ones",
    "if": "write anyOf: each case with its condition as a const",
    "then": "write anyOf: each case with its condition as a const",
    "else": "write anyOf: each case with its condition as a const",
    "dependentRequired": "write anyOf: with both properties required, and without the first",
    "dependentSchemas": "write anyOf: with the property required, and without it",
    "dependencies": "write anyOf: with the property required, and without it",
    "unevaluatedProperties": "write additionalProperties: false",
    "unevaluatedItems": "write prefixItems and items: false",
}
"""Advice in place of a keyword."""


def without_annotations(schema: str) -> str:
    """The text of a schema without formats that no text is held to, and without `uniqueItems` and `propertyNames` where
    they forbid nothing. Raises ValueError, RecursionError."""
    if not any(word in schema for word in _MAYBE):
        return schema
    root = json.loads(schema)
    return json.dumps(root, ensure_ascii=False) if _strip(root) else schema


def advice(message: str) -> str | None:
    """Advice about the keywords that a message of the library refuses, if it is known."""
    if message.startswith("oneOf constraints "):
        return f"oneOf whose schemas may overlap cannot be held to: {INSTEAD['oneOf']}"
    if (found := _UNIMPLEMENTED.match(message)) is None:
        return None
    keys = json.loads(found[1])
    known = dict.fromkeys(INSTEAD[key] for key in keys if key in INSTEAD)
    return f"{', '.join(keys)} cannot be held to: {'; '.join(known)}" if known else None


def _strip(root: Any) -> bool:
    """True if anything was left out."""
    found, waiting = False, [(root, False)]
    while waiting:
        value, names_schemas = waiting.pop()
        if isinstance(value, list):
            waiting.extend((member, False) for member in value)
        elif isinstance(value, dict) and names_schemas:
            waiting.extend((member, False) for member in value.values())
        elif isinstance(value, dict):
            void = [key for key, member in value.items() if _is_void(key, member)]
            for key in void:
                del value[key]
            found = found or bool(void)
            waiting.extend((member, key in _MAPS) for key, member in value.items() if key not in _VALUES)
    return found


def _is_void(key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value not in _FORMATS
    return (key == "uniqueItems" and value is False) or (
        key == "propertyNames" and value in (True, {}, {"type": "string"})
    )
