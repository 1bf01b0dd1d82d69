"""The model's own chat template, rendered in a sandbox, and safe against control tokens inside what users wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.models import Message

Piece = tuple[str, bool]
"""Text, and whether it is a control token's spelling that a user wrote (to be encoded as plain text)."""

_PROBE = "octavo0probe"
_PROBES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "user": ((), ()),
    "system": ((), ("user",)),
    "developer": ((), ("user",)),
    "assistant": (("user",), ("user",)),
    "tool": (("user", "assistant"), ()),
}
"""The roles before and after a message in a conversation that templates accept. Each stands below those it needs."""


class TemplateFailed(ValueError):
    """The template refused these messages, or is itself broken. The message says which."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateFailed(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)  # unlike jinja2's own: no HTML escapes


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


class ChatTemplate:
    """One compiled template.

    `special` lists the spellings of the control tokens; `variables` are names that the template may use, such as
    `bos_token`. Raises TemplateFailed if the source does not compile.
    """

    def __init__(self, source: str, *, special: Iterable[str], variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateFailed(f"the model's chat template does not compile: {error}") from error
        longest_first = sorted(map(re.escape, special), key=len, reverse=True)
        self._special = re.compile("|".join(longest_first)) if longest_first else None
        self._variables = dict(variables)
        self._takes_parts = self._find_takes_parts()

    def render(self, messages: Sequence[Message]) -> list[Piece]:
        """The prompt, ending where the assistant's answer begins, in pieces that concatenate to the whole.

        A control token that a user typed is fenced with two characters that occur in no message, travels through
        the template as ordinary text, and comes out as a piece of its own. Raises TemplateFailed.
        """
        left, right = _unused_characters(message.content for message in messages)
        turns = [(message.role, self._fence(message.content, left, right)) for message in messages]
        return self._split(self._text(turns, self._takes_parts), left, right)

    def _text(self, turns: Iterable[tuple[str, str]], takes_parts: Set[str]) -> str:
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if role in takes_parts else text}
            for role, text in turns
        ]
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._variables
            )
        except TemplateFailed:
            raise
        except Exception as error:  # a template may fail in any way that Python can
            raise TemplateFailed(f"the model's chat template failed: {type(error).__name__}: {error}") from error

    def _find_takes_parts(self) -> Set[str]:
        """The roles whose text is in the prompt only if their content is a list of parts: the template walks over it.

        Tried instead of read off the source, which may hide the walk in a filter, a macro or a variable.
        """
        found: set[str] = set()
        for role in _PROBES:
            if not self._shows(role, found) and self._shows(role, found | {role}):
                found.add(role)
        return found

    def _shows(self, role: str, takes_parts: Set[str]) -> bool:
        before, after = _PROBES[role]
        turns = [*((other, "x") for other in before), (role, _PROBE), *((other, "x") for other in after)]
        try:
            return _PROBE in self._text(turns, takes_parts)
        except TemplateFailed:
            return False

    def _fence(self, content: str, left: str, right: str) -> str:
        if self._special is None:
            return content
        return self._special.sub(lambda match: f"{left}{match[0]}{right}", content)

    def _split(self, text: str, left: str, right: str) -> list[Piece]:
        """A template that cuts messages at a token may leave one side of its fence, which is dropped."""
        if self._special is None:
            return [(text, False)] if text else []
        parts = re.split(f"{left}({self._special.pattern}){right}", text)
        torn = re.compile(f"[{left}{right}]")
        pieces = [(part, True) if n % 2 else (torn.sub("", part), False) for n, part in enumerate(parts)]
        return [piece for piece in pieces if piece[0]]


def _unused_characters(texts: Iterable[str]) -> tuple[str, str]:
    used = set().union(*map(set, texts))
    free = (character for code in range(0xE000, 0xF8FF) if (character := chr(code)) not in used)
    try:
        return next(free), next(free)
    except StopIteration:
        raise TemplateFailed("the messages use every private-use character there is") from None
