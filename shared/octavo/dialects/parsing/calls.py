"""The common part of call formats: where a call begins, its arguments, and calls as JSON objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.json_text import decoded, pass_string, pass_value, read_string
from octavo.dialects.parsing.source import Reading, Source

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schema of the parameters of each tool, by the tool's name."""

Calls = Callable[[Source, Answer, Tools], Reading[bool]]
"""Reads the call or calls whose marker stands here. False if there is none after all: then nothing was given out, and
the marker was only mentioned. True with the source behind the last call, or where it breaks off."""

NAME = re.compile(r"[\w.:/-]*")
"""The characters of a tool's name."""

_BEGINNINGS = ("{", '"', "null", "}", "<", "`")
_NAME_KEYS = ("name", "function")
_ARGUMENTS_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("type", "id")
_END = "}"


def read_no_calls(source: Source, answer: Answer, tools: Tools) -> Reading[bool]:
    """The calls of a model without tools."""
    yield from ()
    return False


def several(source: Source, one: Callable[[], Reading[bool]]) -> Reading[bool]:
    """Calls for as long as `one` finds another one. Whether there was any."""
    begun = False
    while (yield from one()):
        begun = True
        source.mark()
    if begun:
        source.back()
    return begun


def section(source: Source, begin: str, one: Callable[[], Reading[bool]], end: str) -> Reading[bool]:
    """Likewise, between markers of their own, which a model may leave out."""
    yield from source.take(begin)
    begun = yield from several(source, one)
    if begun:
        yield from source.take(end, spaced=True)
    return begun


def begin_call(source: Source, answer: Answer, name: str, own_id: str | None = None) -> Reading[bool]:
    """A call of `name`, if its arguments come next: an object, a string that holds one, null, or the call's end."""
    yield from source.space()
    if not (yield from source.ahead(_BEGINNINGS)):
        return False
    source.commit()
    answer.begin_call(name, own_id)
    return True


def pass_arguments(source: Source, answer: Answer) -> Reading[bool]:
    """Give out the arguments that stand here. False if they break off."""
    beginning = yield from source.ahead(_BEGINNINGS)
    if beginning == "{":
        return (yield from pass_value(source, answer.arguments))
    if beginning == '"':
        pieces: list[str] = []
        whole = yield from pass_string(source, pieces.append)
        answer.arguments(_unwrapped("".join(pieces)))
        return whole
    yield from source.take("null")
    answer.arguments("{}")
    return True


def read_call(source: Source, answer: Answer, name: str, own_id: str | None = None) -> Reading[bool]:
    """Both. Whether there was a call."""
    begun = yield from begin_call(source, answer, name, own_id)
    if begun:
        yield from pass_arguments(source, answer)
    return begun


def read_call_object(source: Source, answer: Answer, accepts: Callable[[str], bool] = bool) -> Reading[bool]:
    """A call as an object with `name` and `arguments` (or `parameters`), in any order, of a name that is accepted.

    Arguments are given out as they come if the name came before them. False if this is no such object.
    """
    if not (yield from source.take("{")):
        return False
    name: str | None = None
    arguments: list[str] = []
    begun = ended = False
    while (key := (yield from _next_key(source))) is not None:
        if key == _END:
            ended = True
            break
        if key in _NAME_KEYS and name is None:
            name = yield from read_string(source)
            if name is None or not accepts(name):
                return False
        elif key in _ARGUMENTS_KEYS and name is not None and not begun:
            begun = yield from begin_call(source, answer, name)
            if not begun:
                return False
            if not (yield from pass_arguments(source, answer)):
                return True
        elif begun or key in _ARGUMENTS_KEYS or key in _OTHER_KEYS:
            if not (yield from pass_value(source, arguments.append if key in _ARGUMENTS_KEYS else _ignore)):
                break
        else:
            return False
        if begun:
            source.mark()
    if begun:
        (source.commit if ended else source.back)()
    elif ended and name is not None and (whole := _unwrapped("".join(arguments))).startswith("{"):
        begun = True
        source.commit()
        answer.begin_call(name)
        answer.arguments(whole)
    return begun


def _next_key(source: Source) -> Reading[str | None]:
    """The key of the next member, its value next, or the object's end. None where there is neither."""
    yield from source.take(",", spaced=True)
    if (yield from source.take(_END, spaced=True)):
        return _END
    yield from source.space()
    key = yield from read_string(source)
    if key is None or not (yield from source.take(":", spaced=True)):
        return None
    yield from source.space()
    return key


def _unwrapped(arguments: str) -> str:
    """Arguments that may be inside a string, or missing."""
    if arguments.startswith('"'):
        return decoded(arguments) or arguments
    return "{}" if arguments in ("", "null") else arguments


def _ignore(_: str) -> None:
    pass
