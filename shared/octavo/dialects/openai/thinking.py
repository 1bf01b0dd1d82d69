"""Thinking as servers let a request choose it, and the variables of a chat template that mean the same."""

from __future__ import annotations

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

    def template_arguments(self, *others: Any) -> dict[str, Any]:
        """Variables of the template. `others` are what else the dialect has, each true, false or an effort; a later
        one goes before an earlier one, and the variables that were sent go before all."""
        found: dict[str, Any] = {}
        for said in (self.think, self.enable_thinking, *others, self.reasoning_effort):
            found |= arguments_of(said)
        return found | (self.chat_template_kwargs or {})


def arguments_of(said: bool | str | None) -> dict[str, Any]:
    """The template's words for thinking that is on, off, or an effort: `none` is no thinking at all."""
    if said is None:
        return {}
    if isinstance(said, bool) or said == "none":
        return {"enable_thinking": said is True, "thinking": said is True}
    return {"reasoning_effort": said}
