"""JSON schemas that allow no properties but those that they name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from octavo.terms.errors import GrammarError

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else")
_SPREADING = ("allOf", "anyOf", "oneOf")


def strict(text: str) -> str:
    """The schema with `additionalProperties: false` at every object that does not say otherwise, as OpenAI's strict
    mode demands of its users. The order of members stays.

    An object that is described in parts, by `allOf` or by properties beside `anyOf`, `oneOf` or `$ref`, stays open, and
    so do its parts: each would forbid what the others name. Raises `GrammarError` for text that is no JSON.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from None
    parts = set()
    for member in _schemas(schema):
        for part in _parts(member):
            parts.add(id(part))
            parts.add(id(_referred(schema, part)))
    for member in list(_schemas(schema)):
        if _is_closable(member) and id(member) not in parts:
            member["additionalProperties"] = False
    return json.dumps(schema, ensure_ascii=False)


def _is_closable(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type")
    is_object = "properties" in schema or kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
    return is_object and "additionalProperties" not in schema and not _parts(schema)


def _parts(schema: dict[str, Any]) -> list[Any]:
    """The schemas that describe the same object together with this one or with each other."""
    lists = [schema[key] for key in _SPREADING if isinstance(schema.get(key), list)]
    members = [member for found in lists for member in found]
    together = len(schema["allOf"]) > 1 if isinstance(schema.get("allOf"), list) else False
    if "properties" in schema and ("$ref" in schema or members):
        return [{"$ref": schema["$ref"]}, *members] if "$ref" in schema else members
    return members if together else []


def _referred(root: Any, part: Any) -> Any:
    """The target of a local `$ref`, if it is one."""
    pointer = part.get("$ref") if isinstance(part, dict) else None
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return None
    found = root
    for step in pointer.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _schemas(root: Any) -> Iterator[dict[str, Any]]:
    """The schema and all below it; no values of `const`, `enum`, `default` or `examples`."""
    waiting = [root]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        waiting.extend(member for key in _MAPS if isinstance(schema.get(key), dict) for member in schema[key].values())
        waiting.extend(member for key in _LISTS if isinstance(schema.get(key), list) for member in schema[key])
        waiting.extend(schema[key] for key in _SINGLE if key in schema)
        waiting.extend(schema["items"] if isinstance(schema.get("items"), list) else ())
