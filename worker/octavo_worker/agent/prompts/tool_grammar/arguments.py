"""The arguments of a call, in the notation of a format, by the JSON schema of a tool's parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.dialects.parsing import BareArguments, TaggedArguments
from octavo_worker.agent.prompts.tool_grammar.lark import EMPTY, Lark, alternatives

Schema = Mapping[str, Any]
_DEFINITIONS = ("$defs", "definitions")
_DEEPEST = 16


def arguments_rule(lark: Lark, notation: TaggedArguments | BareArguments | None, schema: Schema) -> str:
    """An expression for the arguments of one call."""
    match notation:
        case None:
            return lark.json(schema)
        case TaggedArguments():
            return _Tagged(lark, notation, schema).arguments()
        case BareArguments(quote):
            return _Bare(lark, quote, schema).object(schema, _DEEPEST)


def properties_of(schema: Schema, root: Schema) -> list[tuple[str, Schema, bool]]:
    """The properties of an object, in their order: name, schema, and whether it is required."""
    schema = resolved(schema, root)
    properties = schema.get("properties")
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    if not isinstance(properties, Mapping):
        return []
    return [(name, item if isinstance(item, Mapping) else {}, name in names) for name, item in properties.items()]


def resolved(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference into the same schema names, or the schema itself."""
    for _ in range(_DEEPEST):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        found: Any = root
        for step in reference.removeprefix("#").split("/")[1:]:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return {}
        schema = found
    return {}


def kinds_of(schema: Schema) -> set[str]:
    """The types that a schema names. Empty: any."""
    kinds = schema.get("type")
    return {kinds} if isinstance(kinds, str) else {kind for kind in kinds or () if isinstance(kind, str)}


def texts_of(schema: Schema) -> list[str] | None:
    """The strings that an enumeration allows. None if it is no enumeration of strings."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        return None
    return values


def with_definitions(schema: Schema, root: Schema) -> dict[str, Any]:
    """A part of a schema as one of its own."""
    return {**schema, **{name: root[name] for name in _DEFINITIONS if name in root}}


class _Tagged:
    """`before_key` KEY `before_value` VALUE `after_value`: strings stand as they are, other values as JSON."""

    def __init__(self, lark: Lark, notation: TaggedArguments, root: Schema) -> None:
        self._lark = lark
        self._notation = notation
        self._root = root

    def arguments(self) -> str:
        pairs = []
        for name, schema, is_required in properties_of(self._root, self._root):
            pair = self._lark.rule(f"{self._key(self._lark.literal(name))} {self._value(schema)}")
            pairs.append(pair if is_required else f"{pair}?")
        if pairs or self._root.get("additionalProperties") is False:
            return " ".join(pairs)
        key = self._lark.terminal("/[A-Za-z_][A-Za-z0-9_.-]*/")
        return self._lark.rule(f"{self._key(key)} {self._text()}") + "*"

    def _key(self, key: str) -> str:
        before, behind = self._lark.literal(self._notation.before_key), self._lark.literal(self._notation.before_value)
        return f"{before} {key} {behind}"

    def _value(self, schema: Schema) -> str:
        schema = resolved(schema, self._root)
        after = self._lark.literal(self._notation.after_value)
        if (texts := texts_of(schema)) is not None:
            allowed = alternatives([self._lark.literal(text) or EMPTY for text in texts])
            return f"{allowed} {after}"
        kinds = kinds_of(schema)
        if kinds == {"string"} or not kinds & {"integer", "number", "boolean", "null", "array", "object"}:
            return self._text() if not self._is_composed(schema) else f"{self._json(schema)} {after}"
        if "string" not in kinds:
            return f"{self._json(schema)} {after}"
        other = self._json({**schema, "type": sorted(kinds - {"string"})})
        return alternatives([self._text(), f"{other} {after}"])

    def _is_composed(self, schema: Schema) -> bool:
        return any(name in schema for name in ("anyOf", "oneOf", "allOf", "enum", "const"))

    def _json(self, schema: Schema) -> str:
        return self._lark.json(with_definitions(schema, self._root))

    def _text(self) -> str:
        return self._lark.rule(self._lark.text_until(self._notation.after_value))


class _Bare:
    """An object with bare keys, whose strings stand between two `quote`."""

    def __init__(self, lark: Lark, quote: str, root: Schema) -> None:
        self._lark = lark
        self._quote = quote
        self._root = root  # which keeps all its parts where they are
        self._known: dict[tuple[int, int], str] = {}  # by schema and depth: one that names itself would grow for ever

    def object(self, schema: Schema, depth: int) -> str:
        """An object by its schema, properties in their order; one without properties may have any."""
        found = properties_of(schema, self._root)
        opening, closing = self._lark.literal("{"), self._lark.literal("}")
        if not found or not depth:
            return f"{opening} {closing}" if schema.get("additionalProperties") is False else self._any_object()
        members = [
            (self._lark.rule(f"{self._lark.literal(f'{name}:')} {self._value(item, depth - 1)}"), is_required)
            for name, item, is_required in found
        ]
        return self._lark.rule(f"{opening} {self._listed(members)} {closing}")

    def _listed(self, members: list[tuple[str, bool]]) -> str:
        """Members with commas between those that are there."""
        comma = self._lark.literal(",")
        rest = ""
        behind = ""  # what follows a member that is there
        for member, is_required in reversed(members):
            first = f"{member} {behind}".strip()
            later = f"{comma} {first}"
            if is_required:
                rest, behind = first, self._lark.rule(later)
            else:
                rest = self._lark.rule(alternatives([first, rest])) if rest else self._lark.rule(f"({first})?")
                behind = self._lark.rule(alternatives([later, behind])) if behind else self._lark.rule(f"({later})?")
        return rest

    def _value(self, schema: Schema, depth: int) -> str:
        schema = resolved(schema, self._root)
        key = id(schema), depth
        if key not in self._known:
            self._known[key] = self._lark.rule(self._new_value(schema, depth))
        return self._known[key]

    def _new_value(self, schema: Schema, depth: int) -> str:
        if (texts := texts_of(schema)) is not None:
            return alternatives([self._lark.literal(f"{self._quote}{text}{self._quote}") for text in texts])
        for keyword in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(keyword), list) and options and depth:
                return alternatives([self._value(option, depth - 1) for option in options])
        if isinstance(values := schema.get("enum"), list) and values:
            return alternatives([self._lark.literal(json.dumps(value)) for value in values])
        kinds = kinds_of(schema) or {"any"}
        return alternatives([self._of_kind(kind, schema, depth) for kind in sorted(kinds)])

    def _of_kind(self, kind: str, schema: Schema, depth: int) -> str:
        match kind:
            case "string":
                return self._text()
            case "object" if depth:
                return self.object(schema, depth)
            case "array" if depth:
                item = schema.get("items")
                one = self._value(item, depth - 1) if isinstance(item, Mapping) else self._any()
                comma = self._lark.literal(",")
                return self._lark.rule(f'"[" ({one} ({comma} {one})*)? "]"')
            case "integer" | "number" | "boolean" | "null":
                return self._lark.json({**_bounds(schema), "type": kind})
            case _:
                return self._any()

    def _text(self) -> str:
        return self._lark.rule(f"{self._lark.literal(self._quote)} {self._lark.text_until(self._quote)}")

    def _any(self) -> str:
        """Any value but a list or an object."""
        plain = self._lark.json({"type": ["number", "boolean", "null"]})
        return self._lark.rule(alternatives([self._text(), plain]))

    def _any_object(self) -> str:
        key = self._lark.terminal("/[A-Za-z_][A-Za-z0-9_-]*:/")
        member = self._lark.rule(f"{key} {self._any()}")
        return self._lark.rule(f'"{{" ({member} ("," {member})*)? "}}"')


def _bounds(schema: Schema) -> dict[str, Any]:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    return {name: schema[name] for name in names if name in schema}
