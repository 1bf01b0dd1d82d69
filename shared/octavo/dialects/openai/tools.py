"""Tools and thinking of a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from octavo.dialects.field_table import Dropping
from octavo.dialects.openai.fields import Body, Cacheable, JsonObject
from octavo.dialects.openai.thinking import EffortFields, ReasoningOptions, ThinkingSwitch
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


def foreign_tool(tool: Any) -> str | None:
    """The type of a tool that a server would run, or that has no schema of its own: whatever brings no function."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if not isinstance(kind, str) or kind in ("function", "custom"):
        return None
    return None if any(name in tool for name in ("function", "parameters", "input_schema")) else kind


def _runs_here(choice: Any) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") not in ("function", "custom", "allowed_tools"):
        raise PydanticCustomError("not_supported", "no tools but the caller's functions are called here: name one")
    return choice


OF_THE_CALLER = BeforeValidator(_runs_here)
"""Check of a choice among tools."""


class ChatFields(EffortFields):
    """The fields of a chat that decide what its template is given, and how its answer is taken apart."""

    tools: (
        Annotated[tuple[ToolBody, ...], Dropping(foreign_tool), Field(max_length=MAX_TOOLS, fail_fast=True)] | None
    ) = None
    tool_choice: Annotated[Literal["none", "auto", "required"] | NamedChoice | None, OF_THE_CALLER] = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    thinking: bool | ThinkingSwitch | None = None
    reasoning: ReasoningOptions | None = None
    thinking_budget: int | None = Field(None, ge=0, le=1 << 24)

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
            "chat_template_kwargs": self.template_arguments(),
            "parsed": True,
        }

    @property
    def budget(self) -> int | None:
        """Most tokens of a thought."""
        others = (self.thinking_budget, self._switch.budget_tokens, self._options.max_tokens)
        return next((limit for limit in (self.thinking_token_budget, *others) if limit is not None), None)

    @property
    def shows_reasoning(self) -> bool:
        """False if the answer's thoughts are left out."""
        return self.include_reasoning is not False and not self._options.exclude

    @property
    def _switch(self) -> ThinkingSwitch:
        return self.thinking if isinstance(self.thinking, ThinkingSwitch) else ThinkingSwitch(type="auto")

    @property
    def _options(self) -> ReasoningOptions:
        return self.reasoning or ReasoningOptions()

    def _said_otherwise(self) -> list[tuple[str, bool | str | None]]:
        thinking = self.thinking
        return [
            ("thinking", thinking.type != "disabled" if isinstance(thinking, ThinkingSwitch) else thinking),
            ("reasoning.enabled", self._options.enabled),
            ("reasoning.effort", self._options.effort),
        ]


def _chosen(choice: str | NamedChoice | None) -> ToolChoice:
    if isinstance(choice, NamedChoice):
        return ToolChoice(mode="required", name=choice.function.name)
    return ToolChoice.model_validate(choice or "auto")
