"""Stop strings of an answer that is taken apart act on what it says: not in thoughts, calls or markers."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import generated_control_texts as control
import generated_tagged_texts as tagged
import generated_texts as plain
import pytest
from generated_texts import Generated
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tool_answers import format_of

from octavo.dialects.parsing import AnswerStops, ContentDelta
from octavo.queue.protocol import Claim
from octavo.terms.messages import Chunk
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.prompts.answer_form import AnswerForm, EncodedPrompt
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import TokenOutput

DEMO = Tokenizer.from_file(str(model_folder("demo") / "tokenizer.json"))
TEXTS = [
    *(*plain.HERMES, *plain.LLAMA, *plain.MISTRAL),
    *(*control.DEEPSEEK, *control.KIMI, *control.HARMONY, *tagged.QWEN_CODER, *tagged.GLM, *tagged.GEMMA),
]
PARSED = [text for text in TEXTS if {text.tools, text.thinks} != {"none"}]


def published(text: Generated, stop: list[str], pieces: list[str], *, include: bool = False) -> tuple[list[str], bool]:
    """The output with each piece, all that is left with the last, and whether a stop string ended it."""
    stops = AnswerStops(stop, text.parser(), include=include)
    out = []
    for piece in pieces:
        out.append(stops.feed(piece))
        if stops.hit:
            return out, True
    return [*out, stops.flush()], stops.hit


def said(text: Generated, whole: str) -> list[str]:
    """The pieces of content of a text that is read at once, without the white space at their ends."""
    parser = text.parser()
    deltas = [*parser.feed(whole), *parser.finish()]
    return [delta.text.strip() for delta in deltas if isinstance(delta, ContentDelta)]


def cut(whole: str, cuts: set[int]) -> list[str]:
    bounds = sorted({0, len(whole), *(place for place in cuts if place < len(whole))})
    return [whole[start:end] for start, end in pairwise(bounds)]


@given(data=st.data(), include=st.booleans())
def test_however_an_answer_is_cut_it_ends_at_the_first_stop_string_that_it_says(
    data: st.DataObject, include: bool
) -> None:
    text = data.draw(st.sampled_from(PARSED))
    whole = text.text
    starts = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3))
    stop = [whole[start : start + data.draw(st.integers(1, 6))] for start in starts]
    out, hit = published(text, stop, cut(whole, data.draw(st.sets(st.integers(0, len(whole))))), include=include)
    result = "".join(out)
    one_by_one, hit_one_by_one = published(text, stop, list(whole), include=include)
    assert ("".join(one_by_one), hit_one_by_one) == (result, hit)
    assert whole.startswith(result)
    if hit and include:
        assert result.endswith(tuple(stop))
    elif hit:
        assert whole.startswith(tuple(stop), len(result))
        assert not any(string in piece for string in stop for piece in said(text, result))
    else:
        assert result == whole
        assert not any(string in piece for string in stop for piece in said(text, whole))


@pytest.mark.parametrize("text", PARSED, ids=lambda text: f"{text.tools}: {text.name}")
def test_words_stop_an_answer_where_it_says_them_and_nowhere_else(text: Generated) -> None:
    words = set(re.findall(r"\w+|[<>{}|/]+", text.text))
    elsewhere = sorted(word for word in words if word not in text.content)
    out, hit = published(text, elsewhere, list(text.text))
    assert ("".join(out), hit) == (text.text, False)
    for word in words:
        if word in text.content and text.text.count(word) == 1:
            out, hit = published(text, [word], list(text.text))
            assert ("".join(out), hit) == (text.text[: text.text.index(word)], True)


def test_white_space_where_a_thought_or_a_call_ends_stops_nothing() -> None:
    whole = "<think>Hm.\n\n</think>\n\nOne.\n\nTwo."
    thoughtful = Generated("", "hermes", whole, thinks="think")
    out, hit = published(thoughtful, ["\n\n"], list(whole))
    assert ("".join(out), hit) == (whole.removesuffix("\n\nTwo."), True)
    calls = "One." + 2 * '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n\n'
    assert published(Generated("", "hermes", calls), ["\n\n"], list(calls))[1] is False


def test_text_comes_out_as_soon_as_it_can_be_no_answer_with_a_stop_string() -> None:
    text = Generated("", "hermes", "", thinks="think")
    pieces = ["<think>", "ST", "OP", "</think>", "S", "T", "<tool", '_call>{"name": "now", ', '"arguments": {', "ST"]
    out, _ = published(text, ["STOP"], pieces)
    assert out == ["<think>", "ST", "OP", "</think>", "", "", "", "", "ST" + "".join(pieces[6:9]), "ST", ""]


def test_a_stop_string_lies_within_one_piece_of_content() -> None:
    whole = 'ST<tool_call>{"name": "now", "arguments": {}}</tool_call>OP'
    out, hit = published(Generated("", "hermes", whole), ["STOP"], list(whole))
    assert ("".join(out), hit) == (whole, False)


def test_text_of_the_least_tokens_takes_no_part_although_it_was_open_what_it_is() -> None:
    stops = AnswerStops(["STOP", "l_x"], Generated("", "hermes", "").parser())
    assert stops.pass_by("STOP <tool") == "STOP <tool"
    assert (stops.feed("_xSTOP"), stops.hit) == ("_x", True)


THOUGHT = "<think>First STOP and think.</think>The answer is 42, STOP, and more"


def new_job(form: AnswerForm, *, offset: int = 0, **sampling: Any) -> ActiveJob:
    request = JobRequest(model="m", prompt=(1,), sampling=SamplingParams(**sampling))
    job = ActiveJob(Claim("g00_1", "token", 1, "tenant", "normal", request, 1, None, offset, False))
    job.begin(EncodedPrompt([1], form), tokenizer=DEMO, token_bytes=lambda token: b"")
    return job


def generated(job: ActiveJob, ids: list[int]) -> Chunk:
    """All that the job has, once it was given these tokens."""
    (sequence,) = job.sequences
    for place, token in enumerate(ids, 1):
        if sequence.finish_reason is None:
            job.accept(TokenOutput(job.request_id, 0, token, finish_reason="length" if place == len(ids) else None))
    job.unsent()
    (chunk,) = job.result_chunks()
    return chunk


IDS = DEMO.encode(THOUGHT, add_special_tokens=False).ids
THINKING = AnswerForm(format_of("hermes"))
ANSWERED = THOUGHT[: THOUGHT.rindex("STOP")]


@pytest.mark.parametrize(
    ("form", "sampling", "result"),
    [
        (THINKING, {}, ANSWERED),
        (THINKING, {"include_stop_str_in_output": True}, ANSWERED + "STOP"),
        (THINKING, {"min_tokens": len(IDS) - 2}, THOUGHT),
        (AnswerForm(), {}, "<think>First "),
        (AnswerForm(is_prescribed=True), {}, THOUGHT),
    ],
)
def test_a_stop_string_in_a_thought_ends_no_answer(form: AnswerForm, sampling: dict[str, Any], result: str) -> None:
    chunk = generated(new_job(form, stop=("STOP",), **sampling), IDS)
    assert (chunk.text, chunk.finish_reason) == (result, "length" if result == THOUGHT else "stop")


def test_a_takeover_goes_on_looking_at_the_same_token() -> None:
    whole = generated(new_job(THINKING, stop=("STOP",)), IDS)
    count = len(whole.token_ids)
    assert count < len(IDS)
    for offset in range(1, count):
        successor = new_job(THINKING, offset=offset, stop=("STOP",))
        successor.restore([Chunk(0, whole.token_ids[:offset], whole.texts[:offset], format=whole.format)])
        assert generated(successor, IDS[offset:]) == whole
