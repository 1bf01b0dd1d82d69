"""The chunks of a job taken apart: the same whatever the cuts, and for all readers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_answers import ANSWERS, TOOLS, format_of

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.parsing import assemble
from octavo.queue import wire
from octavo.terms.messages import AnswerFormat, Chunk
from octavo.terms.tools import Tool

DATA = [Tool.model_validate(tool) for tool in TOOLS]


def chunks_of(name: str, pieces: list[str], index: int = 0) -> list[Chunk]:
    """A chunk for each piece, which is several tokens, some without text."""
    form = format_of(name)
    chunks = []
    for place, piece in enumerate(pieces):
        texts = ("", piece[:1], piece[1:])
        last = place == len(pieces) - 1
        chunks.append(Chunk(index, (1, 2, 3), texts, None, "stop" if last else None, form if place == 0 else None))
    return chunks


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=12)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("name", ANSWERS)
@given(data=st.data())
def test_calls_are_the_same_whatever_the_cuts(name: str, data: st.DataObject) -> None:
    answer = ANSWERS[name]
    chunks = chunks_of(name, data.draw(cut(answer.text)))
    parser = AnswerParser("job", DATA)
    streamed = assemble([delta for chunk in chunks for delta in parser.feed(chunk)])
    assert (streamed.content or None, streamed.reasoning or None) == (answer.content, answer.reasoning)
    assert [(call.name, json.loads(call.arguments)) for call in streamed.calls] == [
        (tool, json.loads(arguments)) for tool, arguments in answer.calls
    ]
    assert AnswerParser("job", DATA).parse(wire.merge(chunks)) == streamed
    stored = [wire.decode_entry(wire.encode_chunk(chunk)) for chunk in chunks]
    assert AnswerParser("job", DATA).parse(stored) == streamed  # type: ignore[arg-type]


def test_sequences_are_taken_apart_on_their_own() -> None:
    parser = AnswerParser("job", DATA)
    first, second = chunks_of("hermes", [ANSWERS["hermes"].text]), chunks_of("glm4", [ANSWERS["glm4"].text], index=1)
    deltas = {chunk.index: parser.feed(chunk) for chunk in (*first, *second)}
    calls = [assemble(found).calls for found in deltas.values()]
    assert [len(found) for found in calls] == [2, 2]
    assert len({call.id for found in calls for call in found}) == 4


def test_without_parallel_calls_the_first_one_counts() -> None:
    chunks = chunks_of("hermes", [*ANSWERS["hermes"].text])
    parsed = AnswerParser("job", DATA, parallel=False).parse(chunks)
    assert [call.name for call in parsed.calls] == ["get_weather"]
    assert parsed.calls[0].id == AnswerParser("job", DATA).parse(chunks).calls[0].id


def test_plain_text_stays_as_it_is() -> None:
    text = ' <think> <tool_call>{"name": "get_weather", "arguments": {}}</tool_call> '
    (chunk,) = [Chunk(0, (1,), (text,), None, "stop")]
    assert AnswerParser("job", DATA).parse([chunk]).content == text


def test_a_format_of_a_later_version_is_text() -> None:
    chunk = Chunk(0, (1,), ("<call>f</call>",), None, "stop", AnswerFormat("aspen", "birch", opened=True))
    assert AnswerParser("job").parse([chunk]).content == "<call>f</call>"


def test_a_sequence_that_breaks_off_keeps_what_it_has() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro'
    chunk = Chunk(0, (1,), (text,), None, "length", AnswerFormat("hermes"))
    assert [call.arguments for call in AnswerParser("job", DATA).parse([chunk]).calls] == ['{"city": "Ro']
    without_end = Chunk(0, (1,), ("so <tool",), None, None, AnswerFormat("hermes"))
    assert AnswerParser("job").parse([without_end]).content == "so <tool"


def test_a_chunk_that_is_cut_keeps_its_format() -> None:
    (chunk,) = chunks_of("hermes", ["abc"])
    assert chunk.after(2).format == chunk.format


def test_the_examples_are_of_every_family() -> None:
    from octavo.dialects.parsing import NONE, TOOL_FORMATS

    assert set(ANSWERS) == set(TOOL_FORMATS) - {NONE}
