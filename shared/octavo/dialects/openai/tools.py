"""Tools and thinking of a chat request."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from octavo.dialects.openai.fields import Arguments, Body, Cacheable, JsonObject, Word
from octavo.terms.tools import MAX_TOOLS, Tool, ToolChoice, ToolName, as_json, check_tools


class FunctionBody(Cacheable):
    """A function that the model may call. With `strict` a call's arguments obey the schema."""

    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    @property
    def tool(self) -> Tool:
        """As a job has it."""
        given = {
            "name": self.name,
            "description": self.description,
            "strict": self.strict,
            "parameters": None if self.parameters is None else as_json(self.parameters),
        }
        return Tool.model_validate(given)


class ToolBody(Cacheable):
    """One tool. All are functions."""

    type: Literal["function"]
    function: FunctionBody

    @classmethod
    def of(cls, tool: Tool) -> ToolBody:
        """The body that asks for a job's tool."""
        function = FunctionBody(
            name=tool.name,
            description=tool.description,
            parameters=tool.schema_of_parameters,
            strict=tool.strict,
        )
        return cls(type="function", function=function)

    @property
    def tool(self) -> Tool:
        return self.function.tool


class NamedFunction(Body):
    """The function that is to be called."""

    name: ToolName


class NamedChoice(Body):
    """This function must be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatFields(Body):
    """The fields of a chat that decide what its template is given, and how its answer is taken apart."""

    tools: Annotated[tuple[ToolBody, ...], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Word | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = Field(None, ge=0, le=1 << 24)
    chat_template_kwargs: Arguments | None = None

    @field_validator("tool_choice")
    @classmethod
    def _chosen_among_the_tools(cls, choice: Any, info: ValidationInfo) -> Any:
        if "tools" in info.data:
            check_tools(tuple(body.tool for body in info.data["tools"] or ()), _chosen(choice))
        return choice

    @cached_property
    def offered(self) -> tuple[Tool, ...]:
        """All tools, as a job has them."""
        return tuple(body.tool for body in self.tools or ())

    @property
    def takes_several(self) -> bool:
        """True if an answer may have several calls."""
        return self.parallel_tool_calls is not False

    def chat_fields(self) -> dict[str, Any]:
        """Fields of the job."""
        return {
            "tools": self.offered,
            "tool_choice": _chosen(self.tool_choice),
            "parallel_tool_calls": self.takes_several,
            "chat_template_kwargs": {**arguments_of_effort(self.reasoning_effort), **(self.chat_template_kwargs or {})},
            "parsed": True,
        }


def arguments_of_effort(effort: str | None) -> dict[str, Any]:
    """The template's words for a reasoning effort: `none` is no thinking at all."""
    match effort:
        case None:
            return {}
        case "none":
            return {"enable_thinking": False, "thinking": False}
        case _:
            return {"reasoning_effort": effort}


def _chosen(choice: str | NamedChoice | None) -> ToolChoice:
    if isinstance(choice, NamedChoice):
        return ToolChoice(mode="required", name=choice.function.name)
    return ToolChoice.model_validate(choice or "auto")
