"""Answers of each family are taken apart, however the text arrives and wherever it ends."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import generated_control_texts as control
import generated_tagged_texts as tagged
import generated_texts as plain
import pytest
from generated_texts import SCHEMAS, Generated
from hypothesis import given
from hypothesis import strategies as st
from tiers import some

from octavo.dialects.parsing import REASONING_FORMATS, TOOL_FORMATS, Parsed, Parser

TEXTS = [
    *(*plain.HERMES, *plain.LLAMA, *plain.MISTRAL),
    *(*control.DEEPSEEK, *control.KIMI, *control.HARMONY, *tagged.QWEN_CODER, *tagged.GLM, *tagged.GEMMA),
]
MARKERS = sorted(
    {
        *(marker for form in TOOL_FORMATS.values() for marker in (*form.markers, *form.leading)),
        *(marker for form in REASONING_FORMATS.values() if form is not None for marker in (form.begin, form.end)),
        *re.findall(r"<\|?/?\w+\|?>|\[/?[A-Z_]+\]|<｜[^<>]+｜>|<function=|<parameter=", "".join(t.text for t in TEXTS)),
        *("</tool_call>", "</function>", "</parameter>", "<tool_call|>", '<|"|>', "<escape>", "<end_function_call>"),
    },
    key=len,
    reverse=True,
)
each_text = pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text.tools}: {text.name}")


def test_every_format_has_texts():
    assert {text.tools for text in TEXTS} == set(TOOL_FORMATS)
    assert {text.thinks for text in TEXTS} == set(REASONING_FORMATS)


@each_text
def test_a_whole_text_is_taken_apart(text: Generated):
    parsed = text.parse([text.text])
    assert parsed.content == text.content
    assert parsed.reasoning == text.reasoning
    assert [(call.name, call.arguments) for call in parsed.calls] == list(text.calls)


@each_text
def test_character_by_character_the_sum_is_the_same(text: Generated):
    assert text.parse(text.text) == text.parse([text.text])


@given(data=st.data())
def test_however_a_text_is_split_the_sum_is_the_same(data: st.DataObject):
    text = data.draw(st.sampled_from(TEXTS))
    length = data.draw(st.integers(0, len(text.text)))
    cuts = data.draw(st.sets(st.integers(0, length)))
    pieces = [text.text[start:end] for start, end in pairwise(sorted({0, length, *cuts}))]
    assert text.parse(pieces) == text.parse([text.text[:length]])


def words(text: str) -> Counter[str]:
    """The words of a text without its markers and escapes."""
    for marker in MARKERS:
        text = text.replace(marker, " ")
    return Counter(re.findall(r"\w+", re.sub(r"\\[nt\"]", " ", text)))


SYNTAX = {
    *("name", "arguments", "parameters", "function", "type", "id", "call", "functions", "to", "json", "code"),
    *("assistant", "analysis", "commentary", "final", "thought", "null", "None", "True"),
    *("7", "0", "1", "abcDEF123", "aBc123XyZ"),  # ids
    *("2", "nowjson"),  # of headers
}
"""Words of a format's own, which are given out only where no call came of them."""


@each_text
def test_wherever_a_text_is_cut_nothing_raises_and_no_word_is_lost(text: Generated):
    for end in some(range(len(text.text) + 1), quick=20):
        cut = text.text[:end]
        parsed = text.parse([cut])
        given_out = [parsed.content, parsed.reasoning, *(f"{call.name} {call.arguments}" for call in parsed.calls)]
        lost = words(cut) - words(" ".join(given_out))
        assert set(lost) <= SYNTAX, f"lost of {cut!r}"


PIECES = [
    *MARKERS,
    *(
        '{"name": "now", "arguments": {',
        '{"name": "get_weather", "parameters": ',
        '"city": "x"',
        "}",
        "]",
        "{",
        "[",
        '"',
    ),
    *("now", "get_weather", "functions.now:0", "call:now{", "city", ":", ",", ";", "\\", " ", "\n", "é", "🎉", "null"),
    *("assistant", " to=functions.now", "analysis", "final", "commentary", "json", "```json", "```", "function", ">"),
]


@given(
    tools=st.sampled_from(sorted(TOOL_FORMATS)),
    reasoning=st.sampled_from(sorted(REASONING_FORMATS)),
    opened=st.booleans(),
    pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25),
)
def test_nothing_that_a_model_writes_is_an_error(tools: str, reasoning: str, opened: bool, pieces: list[str]):
    def parse(parts: list[str] | str) -> Parsed:
        return Parser(tools, reasoning, schemas=SCHEMAS, opened=opened).parse(parts)

    text = "".join(pieces)
    parsed = parse([text])
    assert parse(pieces) == parsed
    assert parse(text) == parsed


@given(
    tools=st.sampled_from(sorted(TOOL_FORMATS)),
    reasoning=st.sampled_from(sorted(REASONING_FORMATS)),
    text=st.text(st.characters(exclude_characters="<[{")),
)
def test_text_without_a_marker_is_content_to_the_letter(tools: str, reasoning: str, text: str):
    assert Parser(tools, reasoning).parse(text) == Parsed(content=text)
