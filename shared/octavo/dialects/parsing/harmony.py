"""Harmony, gpt-oss's format: messages with a header that names a channel and, for a call, a recipient.

Source: OpenAI's description of the format (cookbook, "OpenAI harmony response format"), and what the models print
beside it: a recipient before the channel, calls on the analysis channel, messages without an end, other words in a
header. Control tokens must be in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import Tools
from octavo.dialects.parsing.json_text import pass_value
from octavo.dialects.parsing.source import Reading, Source

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
FUNCTIONS = "functions."
_ENDS = (END, RETURN, CALL)
_BEGINS = (START, CHANNEL)
_PLAIN = re.compile(r"[^<\n]*")
_ROLE = re.compile(r"^\s*<\|start\|>(?:assistant\b)?")
_CHANNEL = re.compile(r"<\|channel\|>\s*(?:analysis|commentary|final)\b")
_CHANNEL_NAME = re.compile(r"analysis|commentary|final")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_TYPE = re.compile(r"^\s*<\|constrain\|>\s*\w+\s*$|^\s*(?:json|code)\s*$")
_LONGEST_HEADER = 512
_NO_TOOL = ("assistant", "user", "system", "developer", "all")


@dataclass(frozen=True)
class _Header:
    channel: str
    recipient: str | None


def read_answer(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    """All messages: the analysis channel is reasoning, recipients are tools, everything else is content.

    The prompt ends inside the first header, behind the role. Text without a header is content.
    """
    prose = answer.content
    header = yield from _read_first_header(source)
    while True:
        if header is not None:
            prose = answer.reasoning if header.channel == "analysis" else answer.content
            answer.reasoning.seam()
            answer.content.seam()
            prose.seam(apart=True)
            if header.recipient is not None:
                prose = answer.content
                yield from _pass_call(source, answer, _tool_of(header.recipient, tools))
        marker = yield from source.pass_until((*_BEGINS, *_ENDS), prose.add)
        if not marker:
            return
        header = (yield from _read_header(source)) if marker in _BEGINS else None
        if header is None:
            ends = marker in _ENDS and (yield from source.closes(marker, _BEGINS))
            mentioned = source.skip(len(marker))
            if not ends:
                prose.add(mentioned)


def _read_first_header(source: Source) -> Reading[_Header | None]:
    if not (yield from source.ahead((CHANNEL, START, CONSTRAIN, MESSAGE, "to="), spaced=True)):
        return None
    return (yield from _read_header(source, certain=True))


def _read_header(source: Source, *, certain: bool = False) -> Reading[_Header | None]:
    """The header that stands here, up to its message. None, and nothing read, if there is none.

    A marker in the middle of a message may be a mention, unless the role follows it: what it begins must look like a
    header. Where a header is certain it may hold other words, which are dropped.
    """
    source.mark()
    text = ""
    while not (yield from source.take(MESSAGE)):
        literal = yield from source.ahead((START, CHANNEL, CONSTRAIN))
        part = source.skip(len(literal)) if literal else (yield from source.word(_PLAIN))
        text += part
        if not part or len(text) > _LONGEST_HEADER:
            source.back()
            return None
    header = _header_of(text, certain or text.startswith(f"{START}assistant"))
    (source.back if header is None else source.commit)()
    return header


def _header_of(text: str, certain: bool) -> _Header | None:
    recipient = _RECIPIENT.search(text)
    without_recipient = _RECIPIENT.sub(" ", text)
    rest = _TYPE.sub(" ", _ROLE.sub(" ", _CHANNEL.sub(" ", without_recipient)))
    if rest.strip() and not certain:
        return None
    channel = _CHANNEL_NAME.search(without_recipient)
    tool = recipient[1].removeprefix(FUNCTIONS) if recipient is not None else None
    return _Header(channel[0] if channel is not None else "final", None if tool in _NO_TOOL else tool)


def _tool_of(name: str, tools: Tools) -> str:
    """Some headers have the type of the content right behind the name, as in `nowjson`."""
    shorter = name.removesuffix("json")
    return shorter if name not in tools and shorter in tools else name


def _pass_call(source: Source, answer: Answer, name: str) -> Reading[None]:
    """Tools of the model's own, such as `python`, take text that is no JSON."""
    answer.begin_call(name)
    yield from source.space()
    if (yield from source.char()) == "{":
        yield from pass_value(source, answer.arguments)
    else:
        yield from source.pass_until((START, *_ENDS), answer.arguments)
