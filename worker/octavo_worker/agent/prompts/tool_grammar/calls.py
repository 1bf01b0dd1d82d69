"""The grammar that makes a model call tools in the format that it has learned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from octavo.dialects.parsing import HARMONY, NONE, REASONING_FORMATS, TOOL_FORMATS, harmony
from octavo.dialects.strict_schema import strict
from octavo.terms.messages import AnswerFormat
from octavo.terms.structured import Grammar
from octavo.terms.tools import Tool, ToolChoice
from octavo_worker.agent.prompts.tool_grammar.arguments import arguments_rule
from octavo_worker.agent.prompts.tool_grammar.lark import EMPTY, Lark, alternatives, escaped

T = TypeVar("T")

_ANY_OBJECT = {"type": "object"}
_COMPACT = {"x-guidance": {"whitespace_flexible": False}}
_SPACE = r"/[ \n]{0,4}/"
_UNESCAPED = re.compile(r"\\.|/|\n", re.DOTALL)
_INDEX = "{index}"  # of a call, which counts those of earlier turns, too, so it is the model's to say


class NoToolGrammar(ValueError):
    """No grammar can ask for this; the message says why."""


@dataclass(frozen=True)
class ModelTokens:
    """The added tokens of a model by their spelling, the ids of those that end an answer, and what gives the ids of a
    text with markers in it."""

    added: Mapping[str, int]
    ends: frozenset[int]
    encode: Callable[[str], Sequence[int]]


def answer_grammar(
    form: AnswerFormat,
    tokens: ModelTokens,
    *,
    tools: Sequence[Tool] = (),
    choice: ToolChoice | None = None,
    parallel: bool = True,
    content: Grammar | None = None,
) -> Grammar | None:
    """Grammar of an answer: thoughts first, if the model has any; then calls, as `choice` asks for, or `content`,
    what the text has to obey otherwise. None if nothing is asked of it.

    A call of a tool that is strict, or that must be made, has the arguments that the tool's schema allows. Content in
    Lark cannot become a part of another grammar: it leaves no room for calls, and for a thought only if the model is
    sure to end one. Raises NoToolGrammar.
    """
    choice = choice or ToolChoice()
    must_call = choice.mode == "required"
    if not must_call and content is None and not any(tool.strict for tool in tools):
        return None
    if form.reasoning not in REASONING_FORMATS or form.tools not in TOOL_FORMATS:
        raise NoToolGrammar(f"this version knows no format {form.tools}, {form.reasoning}")
    thinks = form.reasoning != NONE
    if content is not None and not must_call and (content.after or not (thinks or tools)):
        return content
    if content is not None and not must_call and content.kind == "lark":
        return replace(content, after=tuple(tokens.encode(_before_content(form))))
    lark = Lark(tokens.added)
    answer = _Answer(lark, form, must_call=must_call)
    bodies = []
    if tools:
        calls = _Calls(lark, form.tools, tokens, must_call=must_call)
        chosen = [tool for tool in tools if choice.name in (None, tool.name)]
        several = parallel and choice.name is None
        if must_call or content is not None or answer.has_messages:
            bodies.append(calls.rule(chosen, several=several))
        else:
            bodies += calls.behind_text(chosen, several=several)
    if content is not None and not must_call:
        bodies.append(answer.saying(_content_rule(lark, content)))
    elif answer.has_messages and not must_call:
        bodies.append(answer.saying(lark.text_without()))
    return Grammar("lark", lark.written(answer.behind_thoughts(alternatives(bodies))))


class _Answer:
    """The part before calls and content, in the format of the model's reasoning."""

    def __init__(self, lark: Lark, form: AnswerFormat, *, must_call: bool) -> None:
        self._lark = lark
        self._form = form
        self._must_call = must_call
        self.has_messages = form.reasoning == HARMONY  # with headers, for content too

    def saying(self, content: str) -> str:
        """The answer itself."""
        return f"{self._lark.literal(_header('final'))} {content}" if self.has_messages else content

    def behind_thoughts(self, body: str) -> str:
        """A thought comes first: the rest of the one that the prompt began, or one or none; harmony has any number."""
        lark = self._lark
        if self.has_messages:
            thought = lark.rule(self._message("analysis"))
            preamble = "" if self._must_call else f"({self._message('commentary')})?"
            return f"{thought}* {preamble} {body}"
        thoughts = REASONING_FORMATS[self._form.reasoning]
        if thoughts is None:
            return body
        thought = f"{lark.text_until(thoughts.end)} {lark.terminal(_SPACE)}"
        return f"{thought} {body}" if self._form.opened else f"({lark.literal(thoughts.begin)} {thought})? {body}"

    def _message(self, channel: str) -> str:
        """One that is followed by another one."""
        lark = self._lark
        begin, next_one = lark.literal(_header(channel)), lark.literal(f"{harmony.START}assistant")
        return f"{begin} {lark.text_until(harmony.END)} {next_one}"


def _before_content(form: AnswerFormat) -> str:
    """The text that a model is sure to write before its answer; empty if nothing is certain."""
    if form.reasoning == HARMONY:
        return _header("final")
    thoughts = REASONING_FORMATS[form.reasoning]
    return thoughts.end if thoughts is not None and form.opened else ""


def _header(channel: str) -> str:
    return f"{harmony.CHANNEL}{channel}{harmony.MESSAGE}"


def _content_rule(lark: Lark, content: Grammar) -> str:
    match content.kind:
        case "json_object":
            return lark.json(_COMPACT | _ANY_OBJECT)
        case "json_schema":
            return lark.json(_COMPACT | _json_of(content, dict))
        case "choice":
            return alternatives([lark.literal(text) or EMPTY for text in _json_of(content, list)])
        case "regex":
            return lark.terminal(f"/{_UNESCAPED.sub(_in_slashes, content.text)}/")
    raise NoToolGrammar(f"a grammar of the kind {content.kind} cannot be a part of another one")


def _in_slashes(match: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(match[0], match[0])


def _json_of(content: Grammar, kind: type[T]) -> T:
    try:
        value = json.loads(content.text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise NoToolGrammar(f"the text of a grammar of the kind {content.kind} is not the JSON that it should be")
    return value


class _Calls:
    """Rules for the calls of one format."""

    def __init__(self, lark: Lark, form: str, tokens: ModelTokens, *, must_call: bool) -> None:
        self._form = TOOL_FORMATS[form]
        syntax = self._form.syntax
        if syntax is None:
            raise NoToolGrammar(
                "this model has no format for calls of tools that is known: leave tool_choice and strict out"
            )
        self._lark = lark
        self._syntax = syntax
        self._must_call = must_call
        ends = [spelling for spelling, token in tokens.added.items() if token in tokens.ends]
        self._last = next((spelling for spelling in ends if syntax.after_arguments.endswith(spelling)), "")

    def rule(self, tools: Sequence[Tool], *, several: bool, without: str = "") -> str:
        """An expression for one call, or more; `without` its beginning, which was written before."""
        syntax, lark = self._syntax, self._lark
        beginning = (syntax.begin + syntax.before_name).removeprefix(without)
        parts = [lark.rule(alternatives([self._call(tool, beginning) for tool in tools]))]
        if several and not self._last:  # a call that ends the answer is the only one
            another = lark.rule(
                alternatives([self._call(tool, syntax.separator + syntax.before_name) for tool in tools])
            )
            parts.append(f"{another}*")
        return lark.rule(" ".join([*parts, lark.literal(syntax.end)]).strip())

    def behind_text(self, tools: Sequence[Tool], *, several: bool) -> list[str]:
        """Expressions for text without calls, and for text with calls behind it, or instead of it."""
        lark, trigger = self._lark, self._syntax.trigger
        if self._form.leading:
            free = lark.terminal(f"/(?s:.*)/ & ~/{escaped(trigger)}(?s:.*)/")
            return [free, self.rule(tools, several=several)]
        calls = self.rule(tools, several=several, without=trigger)
        return [lark.text_without(trigger), f"{lark.text_until(trigger)} {calls}"]

    def _call(self, tool: Tool, beginning: str) -> str:
        syntax, lark = self._syntax, self._lark
        before_index, _, behind_index = syntax.before_arguments.partition(_INDEX)
        name = f"{beginning}{tool.name}{before_index}"
        index = (
            f"{lark.terminal('/[0-9]{1,3}/')} {lark.literal(behind_index)}" if _INDEX in syntax.before_arguments else ""
        )
        arguments = arguments_rule(lark, syntax.arguments, self._schema(tool))
        after = lark.literal(syntax.after_arguments.removesuffix(self._last))
        return lark.rule(" ".join(part for part in (lark.literal(name), index, arguments, after) if part))

    def _schema(self, tool: Tool) -> Mapping[str, Any]:
        if tool.strict:
            return dict(json.loads(strict(tool.parameters)))
        return tool.schema_of_parameters if self._must_call or self._syntax.arguments is not None else _ANY_OBJECT
