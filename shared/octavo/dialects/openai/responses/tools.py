"""Tools of a response, by its body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from octavo.dialects.openai.fields import Body
from octavo.dialects.openai.tools import FunctionBody
from octavo.terms.tools import MAX_TOOLS, Tool, ToolChoice, ToolName


class FunctionTool(FunctionBody):
    """A function that the model may call, in the flat form of this API. All tools are functions."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _is_a_function(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("type") not in (None, "function"):
            raise PydanticCustomError("not_supported", "nothing but functions can be called here")
        return value

    def shown(self) -> dict[str, Any]:
        """As the response shows it."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": bool(self.strict),
        }


class NamedTool(Body):
    """A function by its name."""

    type: Literal["function"]
    name: ToolName


class AllowedTools(Body):
    """Only these of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[tuple[NamedTool, ...], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


Tools = Annotated[tuple[FunctionTool, ...], Field(max_length=MAX_TOOLS, fail_fast=True)]
Choice = Literal["none", "auto", "required"] | NamedTool | AllowedTools


def offered(tools: Sequence[FunctionTool], choice: Choice | None) -> tuple[Tool, ...]:
    """The tools of the job. Raises ValueError for an allowed one that is not there."""
    if not isinstance(choice, AllowedTools):
        return tuple(body.tool for body in tools)
    known = {body.name: body.tool for body in tools}
    names = dict.fromkeys(tool.name for tool in choice.tools)
    if absent := next((name for name in names if name not in known), None):
        raise ValueError(f"tool_choice allows {absent}, which is not among the tools")
    return tuple(known[name] for name in names)


def chosen(choice: Choice | None) -> ToolChoice:
    """Which of the tools are to be called, as a job has it."""
    match choice:
        case NamedTool(name=name):
            return ToolChoice(mode="required", name=name)
        case AllowedTools(mode=mode):
            return ToolChoice(mode=mode)
        case _:
            return ToolChoice.model_validate(choice or "auto")
