"""Tools of a response, by its body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from octavo.dialects.field_table import Dropping
from octavo.dialects.openai.fields import Body, JsonObject
from octavo.dialects.openai.responses.text_argument import PARAMETERS
from octavo.dialects.openai.tools import OF_THE_CALLER, FunctionBody, foreign_tool
from octavo.terms.tools import MAX_TOOLS, Tool, ToolChoice, ToolName, as_json


class ResponseTool(FunctionBody):
    """A function that the model may call, in the flat form of this API, or a custom tool, whose call is a text: the
    model sees it as a function with that one argument. `format` of the text is told to the model in its description."""

    type: Literal["function", "custom"]
    format: JsonObject | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_the_callers(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("type") not in (None, "function", "custom"):
            raise PydanticCustomError("not_supported", "nothing but functions and custom tools can be called here")
        return value

    @model_validator(mode="after")
    def _has_what_its_type_has(self) -> Self:
        if self.type == "custom" and (self.parameters is not None or self.strict):
            raise ValueError("a custom tool takes one text: it has neither parameters nor strict")
        return self

    @property
    def tool(self) -> Tool:
        if self.type == "function":
            return super().tool
        form = (self.format or {}).get("definition")
        description = [text for text in (self.description, form) if isinstance(text, str)]
        return custom_tool(self.name, "\n\n".join(description))

    def shown(self) -> dict[str, Any]:
        """As the response shows it."""
        named = {"type": self.type, "name": self.name, "description": self.description}
        if self.type == "custom":
            return {**named, "format": self.format or {"type": "text"}}
        return {**named, "parameters": self.parameters, "strict": bool(self.strict)}


def is_custom(shown: Mapping[str, Any]) -> bool:
    """True for a tool, as a response shows it, whose calls are texts."""
    return bool(shown["type"] == "custom")


def custom_tool(name: str, description: str = "") -> Tool:
    """The function that stands for a custom tool."""
    return Tool(name=name, description=description, parameters=as_json(PARAMETERS))


class NamedTool(Body):
    """A function or a custom tool by its name."""

    type: Literal["function", "custom"]
    name: ToolName


class AllowedTools(Body):
    """Only these of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        tuple[NamedTool, ...], Dropping(foreign_tool), Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    ]


Tools = Annotated[tuple[ResponseTool, ...], Dropping(foreign_tool), Field(max_length=MAX_TOOLS, fail_fast=True)]
Choice = Annotated[Literal["none", "auto", "required"] | NamedTool | AllowedTools, OF_THE_CALLER]


def offered(tools: Sequence[ResponseTool], choice: Any) -> tuple[Tool, ...]:
    """The tools of the job. Raises ValueError for an allowed one that is not there."""
    if not isinstance(choice, AllowedTools):
        return tuple(body.tool for body in tools)
    known = {body.name: body.tool for body in tools}
    names = dict.fromkeys(tool.name for tool in choice.tools)
    if absent := next((name for name in names if name not in known), None):
        raise ValueError(f"tool_choice allows {absent}, which is not among the tools")
    return tuple(known[name] for name in names)


def chosen(choice: Any) -> ToolChoice:
    """Which of the tools are to be called, as a job has it."""
    match choice:
        case NamedTool(name=name):
            return ToolChoice(mode="required", name=name)
        case AllowedTools(mode=mode):
            return ToolChoice(mode=mode)
        case _:
            return ToolChoice.model_validate(choice or "auto")
