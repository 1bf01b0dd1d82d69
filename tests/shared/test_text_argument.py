"""The text of a custom tool's call, from arguments that come in pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.dialects.openai.responses.text_argument import TextArgument, arguments_of

TEXTS = st.text(st.sampled_from(['"', "\\", "\n", "u", "a", "é", "😀", "{", "}", "\x00", " "]), max_size=12)


def read(arguments: str, cuts: list[int]) -> list[str]:
    """The pieces of text that arguments give, cut in these places."""
    argument = TextArgument()
    edges = sorted({0, len(arguments), *(cut % (len(arguments) + 1) for cut in cuts)})
    pieces = [argument.add(arguments[a:b]) for a, b in pairwise(edges)]
    return [*pieces, argument.end()]


@given(text=TEXTS, ascii_only=st.booleans(), cuts=st.lists(st.integers(0, 99)))
def test_the_text_is_what_the_arguments_say(text: str, ascii_only: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert "".join(read(arguments, cuts)) == text
    assert "".join(read(f'\n{{ "input"  :{json.dumps(text)} , "more": "x"}}', cuts)) == text
    assert json.loads(arguments_of(text)) == {"input": text}


@given(
    written=st.text(st.sampled_from([*'{"input": ', "\\", "u", "d", "8", "a", "}", "é"]), max_size=30),
    cuts=st.lists(st.integers(0, 99)),
)
def test_what_it_gives_does_not_depend_on_the_cuts(written: str, cuts: list[int]) -> None:
    for arguments in (written, '{"input": "' + written):
        assert "".join(read(arguments, cuts)) == "".join(read(arguments, []))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"other": 1, "input": "x"}', "x"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input": 1}', '{"input": 1}'),
        ("", ""),
        ('{"input": "cut o', "cut o"),
        ('{"input": "half \\', "half "),
        ('{"input": "\\ud83d", "a": 1}', "\ufffd"),
        ('{"input": "\\ud83d\\ude00\\udead"}', "😀\ufffd"),
        ('{"input": "\\uZZ \\q\nraw"}', "uZZ q\nraw"),
    ],
)
def test_arguments_that_are_written_otherwise(arguments: str, text: str) -> None:
    assert "".join(read(arguments, [])) == text
    assert "".join(read(arguments, list(range(99)))) == text


def test_text_comes_as_soon_as_it_is_certain() -> None:
    argument = TextArgument()
    pieces = [argument.add(piece) for piece in ('{"in', 'put": "a', "b\\", "n", 'c"', "}")]
    assert pieces == ["", "a", "b", "\n", "c", ""]
