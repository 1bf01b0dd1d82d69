"""Thinking as servers let a request choose it, and the variables of a chat template that mean the same."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field

from octavo.dialects.openai.fields import Arguments, Body, Word


class ThinkingSwitch(Body):
    """On or off, and most tokens of it: as DeepSeek, GLM and Kimi have it."""

    type: Literal["enabled", "adaptive", "auto", "disabled"]
    budget_tokens: int | None = Field(None, ge=0, le=1 << 24)


class ReasoningOptions(Body):
    """As OpenRouter has it."""

    effort: Word | None = None
    enabled: bool | None = None
    max_tokens: int | None = Field(None, ge=0, le=1 << 24)
    exclude: bool | None = None


class EffortFields(Body):
    """Fields of thinking that all dialects take."""

    reasoning_effort: Word | None = None
    chat_template_kwargs: Arguments | None = None
    enable_thinking: bool | None = None
    think: bool | Word | None = None
    thinking_token_budget: int | None = Field(None, ge=0, le=1 << 24)

    def template_arguments(self) -> dict[str, Any]:
        """Variables of the template. Those that were sent go before all that else was said."""
        found: dict[str, Any] = {}
        for _, said in self._said():
            found |= _arguments_of(said)
        return found | (self.chat_template_kwargs or {})

    def unread(self, variables: Collection[str]) -> list[str]:
        """Fields that say what a template with these variables does not read."""
        return [path for path, said in self._said() if not set(_arguments_of(said)) & set(variables)]

    @property
    def says_how_to_think(self) -> bool:
        return bool(self._said())

    def _said(self) -> list[tuple[str, bool | str]]:
        """All that is said of thinking, true, false or an effort, by the path of the field. A later one goes before an
        earlier one."""
        found = [
            ("think", self.think),
            ("enable_thinking", self.enable_thinking),
            *self._said_otherwise(),
            ("reasoning_effort", self.reasoning_effort),
        ]
        return [(path, said) for path, said in found if said is not None]

    def _said_otherwise(self) -> list[tuple[str, bool | str | None]]:
        """Fields of the dialect that say it, too."""
        return []


def _arguments_of(said: bool | str) -> dict[str, Any]:
    """The template's words for thinking that is on, off, or an effort: `none` is no thinking at all."""
    if isinstance(said, bool) or said == "none":
        return {"enable_thinking": said is True, "thinking": said is True}
    return {"reasoning_effort": said}
