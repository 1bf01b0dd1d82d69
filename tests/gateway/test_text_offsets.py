"""A token's text offset is where its text begins, although that may have been held back when the token came."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from scripted_worker import MODEL

from octavo.dialects.openai.logprobs import CompletionLogprobs, TextOffsets, ToldLogprobs
from octavo.dialects.parsing import StopStrings
from octavo.terms.messages import Chunk, TokenLogprob, TopLogprob


def held_back(tokens: list[str], stop: list[str]) -> list[str]:
    """The text that comes with each token, as a worker publishes it."""
    stops = StopStrings(stop)
    texts: list[str] = []
    for token in tokens:
        if stops.hit:
            break
        texts.append(stops.feed(token))
    if not stops.hit:
        texts[-1] += stops.flush()
    return texts


def offsets_of(tokens: list[bytes], texts: list[str], stop: list[str]) -> list[int]:
    offsets = TextOffsets(stop)
    return [offsets.add(token, text) for token, text in zip(tokens, texts, strict=True)]


def test_a_stop_string_that_began_in_vain_moves_no_offset():
    tokens = ["a", "E", "N", "x", " E", "N", "d", "E"]
    texts = held_back(tokens, ["END"])
    assert texts == ["a", "", "", "ENx", " ", "", "ENd", "E"]
    assert offsets_of([token.encode() for token in tokens], texts, ["END"]) == [0, 1, 2, 3, 4, 6, 7, 8]


@given(
    tokens=st.lists(st.text("abé", min_size=1, max_size=3), min_size=1, max_size=30),
    stop=st.lists(st.text("abé", min_size=1, max_size=5), max_size=3),
)
def test_every_token_stands_at_its_offset(tokens, stop):
    texts = held_back(tokens, stop)
    whole = "".join(texts)
    tokens = tokens[: len(texts)]
    found = offsets_of([token.encode() for token in tokens], texts, stop)
    for token, offset in zip(tokens, found, strict=True):
        if offset < len(whole):  # a stop string cuts the last ones
            assert token.startswith(whole[offset : offset + len(token)])


def logprobs_told(
    tokens: list[bytes], texts: list[str], stop: list[str], reason: str, *, cuts: set[int]
) -> list[bytes]:
    """The bytes of each token's entry, whatever chunks the log was cut into."""
    told = ToldLogprobs(stop)
    entries = []
    for start, end in pairwise(sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})):
        items = tuple(TokenLogprob(i, tokens[i], -1.0) for i in range(start, end))
        last = reason if end == len(tokens) else None
        entries += told.add(Chunk(0, tuple(range(start, end)), tuple(texts[start:end]), items, last))
    assert [item.token_id for item, _ in entries] == list(range(len(tokens))), "each token has its entry"
    return [item.token for item, _ in entries]


@given(
    tokens=st.lists(st.text("abé", min_size=1, max_size=3), min_size=1, max_size=30),
    stop=st.lists(st.text("abé", min_size=1, max_size=5), max_size=3),
    cuts=st.sets(st.integers(0, 30)),
)
def test_bytes_of_log_probabilities_are_those_of_the_text(tokens, stop, cuts):
    stops = StopStrings(stop)
    texts = [stops.feed(token) for token in tokens if not stops.hit]
    given_out = [token.encode() for token in tokens[: len(texts)]]
    if not stops.hit:  # the model ends it
        texts.append(stops.flush())
        given_out.append(b"<|end|>")
    told = logprobs_told(given_out, texts, stop, "stop", cuts=cuts)
    assert b"".join(told).decode() == "".join(texts)


def test_an_answer_that_its_limit_cuts_keeps_the_bytes_of_its_last_token():
    tokens = [b"a", b"\xf0\x9f"]
    assert logprobs_told(tokens, ["a", "\ufffd"], ["x"], "length", cuts={1}) == tokens
    tokens[1] = b"<|x|>"
    assert logprobs_told(tokens, ["a", ""], [], "length", cuts=set()) == tokens


def test_alternatives_keep_their_bytes():
    end = TokenLogprob(1, b"<|end|>", -0.5, (TopLogprob(1, b"<|end|>", -0.5), TopLogprob(2, b"b", -1.0)))
    logprobs = CompletionLogprobs()
    logprobs.add(Chunk(0, (0, 1), ("a", ""), (TokenLogprob(0, b"a", -1.0), end), "stop"))
    taken = logprobs.take()
    assert (taken["tokens"], taken["text_offset"]) == (["a", ""], [0, 1])
    assert taken["top_logprobs"][1] == {"<|end|>": -0.5, "b": -1.0}


def test_a_character_in_several_tokens_stands_where_it_begins():
    assert offsets_of([b"T", b"\xc3", b"\xa9", b"!"], ["T", "", "é", "!"], []) == [0, 1, 1, 2]


def test_bytes_that_are_no_text_stand_where_their_replacement_does():
    """Decoding waits for more after a replacement character."""
    assert offsets_of([b"a", b"\xff", b"b", b"c"], ["a", "", "\ufffdb", "c"], []) == [0, 1, 2, 3]
    assert offsets_of([b"a", b"\xe2\x80", b"b", b"c"], ["a", "", "\ufffdb", "c"], []) == [0, 1, 2, 3]


def test_a_special_token_that_is_left_out_of_the_text_takes_no_room():
    assert offsets_of([b"a", b"<|x|>", b"b"], ["a", "", "b"], ["stop"]) == [0, 1, 1]
    assert offsets_of([b"s", b"<|x|>", b"b", b"c"], ["", "", "sb", "c"], ["stop"]) == [0, 1, 1, 2]


def test_offsets_begin_behind_the_echoed_prompt():
    logprobs = CompletionLogprobs(["END"])
    logprobs.skip(5)
    items = tuple(TokenLogprob(token_id=i, token=token, logprob=-1.0) for i, token in enumerate([b"E", b"x", b"y"]))
    for item, text in zip(items, ("", "Ex", "y"), strict=True):
        logprobs.add(Chunk(token_ids=(item.token_id,), texts=(text,), logprobs=(item,)))
    assert logprobs.take()["text_offset"] == [5, 6, 7]


async def test_streams_and_whole_answers_have_the_same_offsets(ai, worker):
    ask = {"model": MODEL, "prompt": "hello", "max_tokens": 4, "logprobs": 0, "echo": False, "stop": [" 0.2x"]}
    (choice,) = (await ai.completions.create(**ask)).choices
    assert choice.logprobs.text_offset == [0, 4, 8, 12]
    parts = [chunk.choices[0] async for chunk in await ai.completions.create(**ask, stream=True)]
    assert [offset for part in parts if part.logprobs for offset in part.logprobs.text_offset] == [0, 4, 8, 12]
