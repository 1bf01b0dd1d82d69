"""The model's own chat template, rendered in a sandbox, and safe against control tokens inside what users wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.terms.conversation import Message, Role
from octavo.terms.tools import Tool, ToolCall
from octavo_worker.agent.prompts.fence import Fence, NoFence, Piece
from octavo_worker.agent.prompts.turns import TurnForm, described

_WORD, _NAME, _VALUE = "octavo0word", "octavo0name", "octavo0value"
_TOOL = Tool(
    name=_NAME,
    description="x",
    parameters='{"type": "object", "properties": {"key": {"type": "string", "description": "x"}}}',
)
_CALL = ToolCall(id="call_0123456789abcdef", name=_NAME, arguments=json.dumps({"key": _VALUE}))
_ASKED = Message(role="user", content="x")
_SAID = Message(role="assistant", content="x")
_CALLED = Message(role="assistant", tool_calls=(_CALL,))
_PROBES: dict[Role, tuple[tuple[tuple[Message, ...], tuple[Message, ...]], ...]] = {
    "user": (((), ()),),
    "system": (((), (_ASKED,)),),
    "developer": (((), (_ASKED,)),),
    "assistant": (((_ASKED,), (_ASKED,)),),
    "tool": (((_ASKED, _CALLED), ()), ((_ASKED, _SAID), ())),
}
"""The messages before and after one of each role in conversations that templates accept. Each role stands below those
that it needs."""
_PROBED_AT = datetime(2024, 7, 26, tzinfo=UTC)
"""A template's form is found at one time whenever a worker starts."""
_ASKED_TO_THINK: tuple[dict[str, bool], ...] = ({}, {"enable_thinking": True}, {"thinking": True})
"""Arguments with which the templates of one family or another begin a thought; some do so without any."""


class TemplateFailed(ValueError):
    """The template refused these messages, or is itself broken. The message says which. `param` is what it is about."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateFailed(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Unlike jinja2's own: no HTML escapes, and the order of keys stays."""
    layout = {name: options[name] for name in ("separators", "sort_keys") if name in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **layout)


def _strftime(moment: datetime, layout: str) -> str:
    """The C library takes a moment for one of the machine's time zone where it counts its seconds (%s)."""
    seconds = str(int(moment.timestamp()))
    return moment.strftime(re.sub("%[%s]", lambda found: seconds if found[0] == "%s" else found[0], layout))


class ChatTemplate:
    """One compiled template. `reads` are the names of the variables in it.

    `special` lists the spellings of the control tokens; `variables` are names that the template may use, such as
    `bos_token`. Raises TemplateFailed if the source does not compile.

    What form of messages it takes is tried, not read off the source, which may hide a walk over parts in a filter, a
    macro or a variable.

    A prompt is a function of what is given and of the files of the model, so that each attempt of a job renders the
    same: the clock is that of the job, in UTC, and nothing is random.
    """

    def __init__(self, source: str, *, special: Iterable[str], variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        del environment.globals["lipsum"], environment.filters["random"]
        try:
            self._template = environment.from_string(source)
            self.reads = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise TemplateFailed(f"the model's chat template does not compile: {error}") from error
        longest_first = sorted(map(re.escape, special), key=len, reverse=True)
        self._special = re.compile("|".join(longest_first)) if longest_first else None
        self._variables = dict(variables)
        self._form = self._find_parts(self._find_call_form() if "tool_calls" in source else TurnForm())
        self._unseen = frozenset(role for role in _PROBES if role != "assistant" and not self._shows(role, self._form))
        self._takes_tools = _NAME in self._tried([_ASKED], self._form, tools=[_TOOL])
        self.calls_once = bool(self._calling(_CALL)) and not self._calling(_CALL, _CALL)
        """True if a turn with several calls is refused: a model that was made to write one could not go on."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        at: datetime,
        tools: Sequence[Tool] = (),
        arguments: Mapping[str, Any] | None = None,
        continued: bool = False,
    ) -> list[Piece]:
        """The prompt at a moment, ending where the assistant's answer begins, in pieces that concatenate to the whole.
        With `continued` it ends behind the content of the last message, which the answer continues.

        Nothing of the messages, tools and `arguments` becomes a control token. Raises TemplateFailed.
        """
        if tools and not self._takes_tools:
            raise TemplateFailed("the model's chat template takes no tools: leave them out", "tools")
        messages = [self._placed(message) for message in messages]
        given = {**(arguments or {}), "messages": self._form.turns(messages), "tools": described(tools)}
        try:
            fence = Fence(self._special, _texts(given))
        except NoFence as error:
            raise TemplateFailed(str(error)) from None
        guarded = fence.guard(given)
        if continued:
            _mark_end(guarded["messages"][-1], fence.cut)
        text = self._text({**guarded, "add_generation_prompt": not continued}, at)
        prompt = fence.before_cut(text) if continued else text
        if prompt is None:
            raise TemplateFailed("the model's chat template leaves out the last message: it cannot be continued")
        pieces = fence.split(prompt)
        self._check_nothing_vanished(messages, "".join(piece for piece, _ in pieces))
        return pieces

    def begins(self, is_thought: Callable[[str], bool]) -> bool:
        """True if it begins the thoughts of its model: one of its prompts ends inside of one, as `is_thought` tells."""
        return any(is_thought(self._tried([_ASKED], self._form, arguments=given)) for given in _ASKED_TO_THINK)

    def _calling(self, *calls: ToolCall) -> str:
        return self._tried([_ASKED, Message(role="assistant", tool_calls=calls)], self._form, tools=[_TOOL])

    def _placed(self, message: Message) -> Message:
        """Developers speak as the system where a template does not know them."""
        if message.role == "developer" and "developer" in self._unseen and "system" not in self._unseen:
            return message.model_copy(update={"role": "system"})
        return message

    def _check_nothing_vanished(self, messages: Sequence[Message], prompt: str) -> None:
        for message in messages:
            if message.role in self._unseen and message.text.strip() not in prompt:
                raise TemplateFailed(
                    f"the model's chat template leaves out messages of the role {message.role}: send them as the user's"
                )

    def _text(self, given: Mapping[str, Any], at: datetime) -> str:
        ours = {**self._variables, "strftime_now": partial(_strftime, at)}
        try:
            return self._template.render(**{"documents": None, "add_generation_prompt": True, **given, **ours})
        except TemplateFailed:
            raise
        except Exception as error:  # a template may fail in any way that Python can
            raise TemplateFailed(f"the model's chat template failed: {type(error).__name__}: {error}") from error

    def _find_call_form(self) -> TurnForm:
        """The first form in which calls are in the prompt, whole; the most usual one where none is."""
        for short_ids, null, as_text in product((False, True), ("", None), (False, True)):
            form = TurnForm(null=null, arguments_as_text=as_text, short_ids=short_ids)
            without = self._tried([_ASKED], form, tools=[_TOOL])
            prompt = self._tried([_ASKED, _CALLED], form, tools=[_TOOL])
            if prompt.count(_NAME) > without.count(_NAME) and _VALUE in prompt:
                return form
        return TurnForm()

    def _find_parts(self, form: TurnForm) -> TurnForm:
        """With the roles whose text is in the prompt only if their content is a list of parts."""
        for role in _PROBES:
            if not self._shows(role, form) and self._shows(role, form.with_parts(role)):
                form = form.with_parts(role)
        return form

    def _shows(self, role: Role, form: TurnForm) -> bool:
        said = Message(role=role, content=_WORD, tool_call_id=_CALL.id if role == "tool" else None)
        return any(_WORD in self._tried([*before, said, *after], form) for before, after in _PROBES[role])

    def _tried(
        self,
        messages: Sequence[Message],
        form: TurnForm,
        *,
        tools: Sequence[Tool] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """A prompt, empty if the template refuses."""
        given = {**(arguments or {}), "messages": form.turns(messages), "tools": described(tools)}
        try:
            return self._text(given, _PROBED_AT)
        except TemplateFailed:
            return ""


def _mark_end(turn: dict[str, Any], mark: str) -> None:
    """Puts a mark behind the content of a turn."""
    content = turn["content"]
    if isinstance(content, list):
        content[-1]["text"] += mark
    else:
        turn["content"] = content + mark


def _texts(value: Any) -> Iterable[str]:
    """All texts in it, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
