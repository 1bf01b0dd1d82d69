"""Thoughts are measured alike in any pieces in which a text comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.dialects.parsing import Parser, ThoughtMeter, closing_text

TEXTS = [
    # tools, reasoning, opened, text, where the meter says inside behind each piece
    ("none", "think", False, ["", " \n", "<think>", "a", "</thin", "k>", "b <think> c"], [0, 0, 1, 1, 1, 0, 0]),
    ("none", "think", False, ["x", "<think>", "a"], [0, 0, 0]),
    ("none", "think", True, ["a", "</think>", "<think>"], [1, 0, 0]),
    ("none", "mistral", False, ["a", "[THINK]", "b", "[/THINK]", "c[TH", "INK]"], [0, 1, 1, 0, 0, 1]),
    ("none", "gemma4", False, ["<|channel>", "thought\n", "b", "<channel|>"], [0, 1, 1, 0]),
    ("deepseek_v3_1", "think", True, ["a", "<｜tool▁calls▁begin｜>", "b"], [1, 0, 0]),
    ("hermes", "think", True, ["a", "<tool_call>", "b"], [1, 1, 1]),
    (
        "harmony",
        "harmony",
        False,
        [
            "<|channel|>",
            "analysis",
            "<|message|>",
            "a",
            "<|end|>",
            "<|start|>assistant<|channel|>final<|message|>",
            "b",
        ],
        [0, 0, 1, 1, 0, 0, 0],
    ),
    ("harmony", "harmony", False, ["<|channel|>analysis to=functions.f<|message|>", "{"], [0, 0]),
    ("none", "none", False, ["<think>", "a"], [0, 0]),
]


@pytest.mark.parametrize(("tools", "reasoning", "opened", "pieces", "expected"), TEXTS)
def test_a_thought_lasts_from_marker_to_marker(
    tools: str, reasoning: str, opened: bool, pieces: list[str], expected: list[int]
) -> None:
    meter, found = ThoughtMeter(tools, reasoning, opened=opened), []
    for piece in pieces:
        meter.feed(piece)
        found.append(int(meter.inside))
    assert found == expected


MARKERS = ["<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>thought", "<channel|>", "<|end|>", "<|start|>"]
WORDS = [
    *MARKERS,
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "a",
    " ",
    "\n",
    "<",
    "thi",
    "x" * 700,
]


@given(
    st.lists(st.sampled_from(WORDS), max_size=12), st.sampled_from(["think", "mistral", "gemma4", "harmony"]), st.data()
)
def test_the_pieces_do_not_matter(words: list[str], reasoning: str, data: st.DataObject) -> None:
    text = "".join(words)
    whole = ThoughtMeter("none", reasoning, opened=False)
    whole.feed(text)
    cut = ThoughtMeter("none", reasoning, opened=False)
    while text:
        length = data.draw(st.integers(1, min(len(text), 300)))
        cut.feed(text[:length])
        text = text[length:]
    assert cut.inside == whole.inside


def test_what_closes_a_thought_is_read_as_its_end() -> None:
    for reasoning, begin in (
        ("think", "<think>"),
        ("mistral", "[THINK]"),
        ("gemma4", "<|channel>thought\n"),
        ("harmony", "<|channel|>analysis<|message|>"),
    ):
        parsed = Parser("none", reasoning).parse([f"{begin}so far", closing_text(reasoning), "so good"])
        assert (parsed.reasoning, parsed.content) == ("so far", "so good")
    called = Parser("harmony", "harmony").parse(
        ["<|channel|>analysis<|message|>hm", closing_text("harmony", calling=True), "f<|constrain|>json<|message|>{}"]
    )
    assert (called.reasoning, [call.name for call in called.calls]) == ("hm", ["f"])
    assert closing_text("none") == ""
