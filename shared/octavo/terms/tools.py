"""Tools that a model may call, its calls, and which of them it has to make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import StringConstraints, model_validator

from octavo.terms.fields import Requested

MAX_TOOLS = 128
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
_DEEPEST = 64
NO_PARAMETERS = '{"type": "object", "properties": {}}'


class Tool(Requested):
    """A function that the model may call. `parameters` is the JSON schema of its arguments, as text: a schema may be
    nested deeper than a message. OpenAI's shape (`{"type": "function", "function": {...}}`) is taken as well.

    `strict`: a call's arguments obey the schema.
    """

    name: ToolName
    description: str = ""
    parameters: str = NO_PARAMETERS
    strict: bool = False

    @model_validator(mode="before")
    @classmethod
    def _openai_shape(cls, value: Any) -> Any:
        return _given(value, "parameters")

    @model_validator(mode="after")
    def _parameters_are_a_schema(self) -> Self:
        if as_object(self.parameters) is None:
            raise ValueError(f"the parameters of the tool {self.name} are no JSON object")
        return self

    @property
    def schema_of_parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return as_object(self.parameters) or {}


class ToolCall(Requested):
    """A call that the model made in an earlier turn. `arguments` are its own text, mostly a JSON object. OpenAI's shape
    is taken as well."""

    name: ToolName
    arguments: str = "{}"
    id: str = ""

    @model_validator(mode="before")
    @classmethod
    def _openai_shape(cls, value: Any) -> Any:
        given = _given(value, "arguments")
        if isinstance(given, dict) and "function" in value and value.get("id") is not None:
            given["id"] = value["id"]
        return given


class ToolChoice(Requested):
    """The model's choice to call tools: as it likes (`auto`), not at all (`none`), at least once (`required`), or the
    one called `name` (then `mode` is `required`). OpenAI's spellings are taken as well."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: ToolName | None = None

    @model_validator(mode="before")
    @classmethod
    def _openai_shape(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"mode": value}
        if isinstance(value, Mapping) and "function" in value:
            named = _inner(value)
            return {"mode": "required", **named} if isinstance(named, Mapping) else named
        return value

    @model_validator(mode="after")
    def _a_name_is_required(self) -> Self:
        if self.name is not None and self.mode != "required":
            raise ValueError("a tool_choice with a name is required: leave the mode out")
        return self


def check_tools(tools: tuple[Tool, ...], choice: ToolChoice) -> None:
    """Raises ValueError for tools of one name, and for a choice among tools that are not there."""
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two tools are called {twice}: give each a name of its own")
    if choice.name is not None and choice.name not in names:
        raise ValueError(f"tool_choice names {choice.name}, which is not among the tools")
    if choice.mode == "required" and not tools:
        raise ValueError("tool_choice asks for a call, but there are no tools")


def as_json(value: Any) -> str:
    """Compact enough, and readable for a model."""
    return json.dumps(value, ensure_ascii=False)


def as_object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is. None if it is none, or has half a surrogate pair, which no text can have."""
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def as_plain_object(text: str) -> dict[str, Any] | None:
    """Likewise; and None for what some readers of JSON refuse: NaN, numbers beyond all floats, deep nesting."""
    value = as_object(text)
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return None if _is_deep(value) else value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
        if not level:
            return False
    return True


def _given(value: Any, json_field: str) -> Any:
    """The fields of a function that are not null, out of OpenAI's shape. `json_field` becomes text."""
    fields = _inner(value)
    if not isinstance(fields, Mapping):
        return fields
    given = {name: item for name, item in fields.items() if item is not None}
    if isinstance(given.get(json_field), Mapping):
        given[json_field] = as_json(given[json_field])
    return given


def _inner(value: Any) -> Any:
    """The value under `function` in OpenAI's shape; anything else as it is."""
    if not isinstance(value, Mapping) or "function" not in value:
        return value
    if (kind := value.get("type", "function")) != "function":
        raise ValueError(f"tools of the type {kind} are not known here: send functions")
    return value["function"]
