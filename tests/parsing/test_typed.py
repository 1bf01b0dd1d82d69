"""Values that were written as plain text have the type that the tool's schema says."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.dialects.parsing.typed import parameter, value_of


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "12", '"12"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": "string"}, 'a "b"\n', '"a \\"b\\"\\n"'),
        ({"type": "integer"}, " 12\n", "12"),
        ({"type": "integer"}, "twelve", '"twelve"'),
        ({"type": "number"}, "1e3", "1e3"),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "false", "false"),
        ({"type": "null"}, "None", "null"),
        ({"type": "array"}, "[1, 'a']", "\"[1, 'a']\""),
        ({"type": "array"}, '[1,  "a"]', '[1,  "a"]'),
        ({"type": "object"}, '{"a": {}}', '{"a": {}}'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "5", '"5"'),
        ({"type": ["string", "null"]}, '"a"', '"\\"a\\""'),
        ({"type": ["string", "number"]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "[]", '"[]"'),
        ({"oneOf": [{"type": "string"}, {"const": None}]}, "None", "null"),
        ({"allOf": [{"type": "string"}]}, "5", '"5"'),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"enum": [1, "a"]}, "1", "1"),
        ({"const": "1"}, "1", '"1"'),
        ({"$ref": "#/$defs/Name"}, "1", '"1"'),
        ({"$ref": "#/$defs/Missing"}, "1", "1"),
        ({"$ref": "#/properties/a"}, "x", '"x"'),
        ({"anyOf": [{"$ref": "#/properties/a"}] * 30 + [{"type": "string"}]}, "1", '"1"'),
        ({}, "1", "1"),
        ({}, '"a"', '"a"'),
        ({}, "a", '"a"'),
        (True, "a", '"a"'),
        ({"type": "array"}, "[" * 100_000, '"' + "[" * 100_000 + '"'),
    ],
)
def test_a_value_has_the_type_of_its_parameter(schema: Any, text: str, value: str):
    types = parameter({"properties": {"a": schema}, "$defs": {"Name": {"type": "string"}}}, "a")
    assert value_of(text, types) == value


@pytest.mark.parametrize("schema", [None, {}, {"properties": None}, {"properties": {"b": {"type": "string"}}}])
def test_of_an_unknown_parameter_nothing_is_known(schema: dict[str, Any] | None):
    assert parameter(schema, "a") == frozenset()
