"""Where an answer begins to call tools, however it is cut, in every format."""

from __future__ import annotations

import generated_control_texts as control
import generated_tagged_texts as tagged
import generated_texts as plain
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.dialects.parsing import CallDelta, Parser
from octavo.terms.messages import AnswerFormat
from octavo_worker.agent.prompts.answer_form import AnswerForm
from octavo_worker.agent.prompts.call_marks import CallMarks

TEXTS = [
    *(*plain.HERMES, *plain.LLAMA, *plain.MISTRAL),
    *(*control.DEEPSEEK, *control.KIMI, *control.HARMONY, *tagged.QWEN_CODER, *tagged.GLM, *tagged.GEMMA),
]


def calls_begin(parser: Parser, pieces: list[str]) -> int | None:
    """The piece with which the first call is certain."""
    for place, piece in enumerate(pieces):
        if any(isinstance(delta, CallDelta) for delta in parser.feed(piece)):
            return place
    return None


@given(size=st.integers(1, 9))
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text.tools}-{text.text[:12]}")
@pytest.mark.full(but=20)
def test_a_marker_is_seen_before_its_call_is_certain(text: plain.Generated, size: int) -> None:
    pieces = [text.text[start : start + size] for start in range(0, len(text.text), size)]
    call = calls_begin(text.parser(), pieces)
    unmarked = text.text.lstrip().startswith("{")  # Llama's are seen where they are spelt as it was taught
    if call is None or unmarked or text.name == "a tool of its own":
        return
    marks = CallMarks(text.tools)
    for piece in pieces[: call + 1]:
        marks.take(piece)
    assert marks.seen_at is not None


def test_the_first_marker_counts_and_none_is_seen_in_plain_words() -> None:
    marks = CallMarks("hermes")
    for piece in ("I call <tool", "s> or <", "tool_cal", "l"):
        marks.take(piece)
        assert marks.seen_at is None
    marks.take(">{")
    seen = marks.seen_at
    assert seen is not None
    marks.take("</tool_call><tool_call>")
    assert marks.seen_at == seen


def test_answers_without_tools_look_for_nothing() -> None:
    assert AnswerForm().call_marks() is None
    assert AnswerForm(AnswerFormat("none", "think")).call_marks() is None
    assert AnswerForm(AnswerFormat("hermes", "think")).call_marks() is not None
