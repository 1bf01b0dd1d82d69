"""How a model writes its answer to one prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.dialects.parsing import NONE, Parser, ThoughtMeter
from octavo.terms.messages import AnswerFormat
from octavo.terms.structured import Grammar
from octavo_worker.agent.prompts.call_marks import CallMarks
from octavo_worker.agent.prompts.thinking import ThinkingBudget


@dataclass(frozen=True)
class AnswerForm:
    """`format` is what readers need to take the answer apart; None where it is plain text. `hidden` are the control
    tokens that are no part of it, `closing` the tokens that close a thought, `schemas` the parameters of the tools.
    `is_prescribed`: what it says is JSON or a choice, which no stop string may cut."""

    format: AnswerFormat | None = None
    hidden: frozenset[int] = frozenset()
    closing: tuple[int, ...] = ()
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_prescribed: bool = False

    def parser(self) -> Parser | None:
        """One that finds the content of a sequence. None where all of the text is content."""
        if self.format is None:
            return None
        form = self.format
        return Parser(form.tools, form.reasoning, schemas=self.schemas, opened=form.opened)

    def call_marks(self) -> CallMarks | None:
        """One that finds where a sequence begins to call tools. None where it has none to call."""
        return None if self.format is None or self.format.tools == NONE else CallMarks(self.format.tools)

    def budget(self, limit: int | None) -> ThinkingBudget | None:
        """Thinking budget of one sequence. None without a limit, or without thoughts."""
        if limit is None or self.format is None or not self.closing:
            return None
        meter = ThoughtMeter(self.format.tools, self.format.reasoning, opened=self.format.opened)
        return ThinkingBudget(limit, self.closing, meter)


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt's token ids, the form of its answer, and the grammar that the answer obeys."""

    ids: list[int]
    form: AnswerForm = AnswerForm()
    grammar: Grammar | None = None
