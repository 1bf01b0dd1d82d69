"""Values that a format writes as plain text, as JSON of the type that the tool's schema says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.dialects.parsing.json_text import quoted

_PYTHON = {"True": "true", "False": "false", "None": "null"}
_DEEPEST = 32


def parameter(schema: Mapping[str, Any] | None, name: str) -> frozenset[str]:
    """The JSON types that parameter `name` may have by the schema of all parameters. Empty: nothing is known."""
    properties = (schema or {}).get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return frozenset(_types(found, schema or {}, set(), _DEEPEST))


def value_of(text: str, types: frozenset[str]) -> str:
    """`text` as JSON. It is a string where a string may stand and the text is no value of another type."""
    bare = _PYTHON.get(text.strip(), text.strip())
    kind = _type_of(bare)
    if kind is None or ("string" in types and kind not in types - {"string"}):
        return quoted(text)
    return bare


def _types(schema: Any, root: Mapping[str, Any], followed: set[str], depth: int) -> set[str]:
    """A schema may refer to itself: no reference is followed twice."""
    if not isinstance(schema, Mapping) or not depth:
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {name for name in _listed(named) if isinstance(name, str)}
    if not types:
        values = _listed(schema.get("enum")) + ([schema["const"]] if "const" in schema else [])
        types = {kind for value in values if (kind := _type_of(json.dumps(value)))}
    if "number" in types:
        types.add("integer")
    for keyword in ("anyOf", "oneOf", "allOf"):
        for other in _listed(schema.get(keyword)):
            types |= _types(other, root, followed, depth - 1)
    if isinstance(reference := schema.get("$ref"), str) and reference not in followed:
        followed.add(reference)
        types |= _types(_referred(reference, root), root, followed, depth - 1)
    return types


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """The schema that a reference into the same schema names."""
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _type_of(text: str) -> str | None:
    """The JSON type of a text; None if it is no JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
