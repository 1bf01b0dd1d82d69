"""Incremental text against `Tokenizer.decode` of everything, for arbitrary tokens."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import octavo_worker
from octavo.dialects.parsing import StopStrings
from octavo_worker.agent.text import TextStream

DEMO = Tokenizer.from_file(str(Path(octavo_worker.__file__).parent / "bundled/demo/tokenizer.json"))
TEXT = "To be, or not to be 日本語 🎉\n\ncafé � end"


def sentencepiece_like() -> Tokenizer:
    """The decoder of Llama 2: "▁" for spaces, bytes for what the vocabulary lacks, the first space stripped."""
    pieces = ["<s>", "▁", "▁To", "▁be", "be", ",", "a", "日", "▁🎉", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


LLAMA = sentencepiece_like()
demo_ids = st.lists(
    st.one_of(st.sampled_from(DEMO.encode(TEXT).ids), st.integers(0, DEMO.get_vocab_size() - 1)), max_size=40
)


def pieces(stream: TextStream, ids: list[int], reason: str | None = "length") -> list[str]:
    """One piece a token; the last token carries the finish reason."""
    out = []
    for position, token in enumerate(ids):
        out.append(stream.feed(token, reason if position == len(ids) - 1 else None))
        if stream.stopped:
            break
    return out


@given(ids=demo_ids, prompt=demo_ids)
def test_pieces_add_up_to_the_decoded_whole(ids, prompt):
    stream = TextStream(DEMO, prompt)
    text = ""
    for piece in pieces(stream, ids):
        text += piece  # nothing is ever taken back
    assert text == DEMO.decode(ids)


@given(ids=demo_ids)
def test_text_before_the_end_is_a_prefix_of_the_whole(ids):
    assert DEMO.decode(ids).startswith("".join(pieces(TextStream(DEMO), ids, reason=None)))


@given(ids=demo_ids, stop=st.lists(st.sampled_from(["e", "be", " t", "日本", "本", "\n\n", "to be", "��"]), max_size=3))
def test_stop_strings_cut_where_the_first_of_them_is_complete(ids, stop):
    for include in (False, True):
        stream = TextStream(DEMO, stop=stop, include_stop=include)
        text = "".join(pieces(stream, ids))
        whole = DEMO.decode(ids)
        ends = [(whole.find(s) + len(s), whole.find(s)) for s in stop if s in whole]
        assert stream.stopped == bool(ends)
        expected = whole if not ends else whole[: min(ends)[0 if include else 1]]
        assert text == expected


@given(ids=demo_ids, cut=st.integers(0, 40), stop=st.lists(st.sampled_from(["be", "本語", " t"]), max_size=2))
def test_replay_after_a_takeover_gives_the_same_pieces(ids, cut, stop):
    whole = pieces(TextStream(DEMO, ids[:3], stop=stop), ids)
    cut = min(cut, len(whole) - 1) if whole else 0
    successor = TextStream(DEMO, ids[:3], stop=stop)
    assert [successor.feed(token) for token in ids[:cut]] == whole[:cut]
    assert pieces(successor, ids[cut:]) == whole[cut:]


@given(
    text=st.text("abc"),
    cuts=st.lists(st.integers(0, 30)),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_do_not_depend_on_how_text_is_cut(text, cuts, stop):
    bounds = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    at_once, in_parts = StopStrings(stop), StopStrings(stop)
    expected = at_once.feed(text) + at_once.flush()
    got = ""
    for start, end in itertools.pairwise(bounds):
        if not in_parts.hit:
            got += in_parts.feed(text[start:end])
    got += in_parts.flush()
    assert (got, in_parts.hit) == (expected, at_once.hit)
    assert not any(s in got for s in stop)


def test_held_back_text_comes_out_when_it_was_no_stop_string():
    ids = DEMO.encode("abcabd", add_special_tokens=False).ids
    stream = TextStream(DEMO, stop=["abd!"])
    assert "".join(pieces(stream, ids)) == "abcabd"
    assert not stream.stopped


def test_characters_split_over_tokens_appear_whole():
    ids = DEMO.encode("🎉", add_special_tokens=False).ids
    assert len(ids) > 2
    assert pieces(TextStream(DEMO), ids, reason=None) == [""] * (len(ids) - 1) + ["🎉"]


def test_incomplete_end_is_flushed_as_replacement_characters():
    ids = DEMO.encode("x🎉", add_special_tokens=False).ids[:-1]
    assert "".join(pieces(TextStream(DEMO), ids)) == DEMO.decode(ids)


def test_prompt_that_ends_inside_a_character_does_not_leak_into_the_output():
    ids = DEMO.encode("ab 🎉", add_special_tokens=False).ids
    for cut in range(1, len(ids)):
        assert "".join(pieces(TextStream(DEMO, ids[:cut]), ids[cut:])) == DEMO.decode(ids[cut:])


def test_first_word_keeps_its_space_after_a_prompt():
    to, be = LLAMA.token_to_id("▁To"), LLAMA.token_to_id("▁be")
    assert pieces(TextStream(LLAMA, [to]), [be, be]) == [" be", " be"]
    assert pieces(TextStream(LLAMA), [be, be]) == ["be", " be"]


@given(
    ids=st.lists(st.integers(0, LLAMA.get_vocab_size() - 1), max_size=20),
    prompt=st.lists(st.integers(0, 8), max_size=4),
)
def test_byte_fallback_never_fails_and_replays(ids, prompt):
    assert pieces(TextStream(LLAMA, prompt), ids) == pieces(TextStream(LLAMA, prompt), ids)


@given(text=st.text("aé日🎉 ", max_size=12))
def test_byte_fallback_of_whole_characters_is_exact(text):
    ids = [LLAMA.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
    prompt = [LLAMA.token_to_id("▁To")]
    assert "".join(pieces(TextStream(LLAMA, prompt), ids)) == text


@pytest.mark.parametrize(("include", "expected"), [(False, "to b"), (True, "to be")])
def test_stop_token_has_text_only_when_asked_for(include, expected):
    *ids, last = DEMO.encode("to b", add_special_tokens=False).ids + DEMO.encode("e", add_special_tokens=False).ids
    assert "".join(pieces(TextStream(DEMO, include_stop=include), [*ids, last], reason="stop")) == expected


def test_min_tokens_exempt_their_text_from_stop_strings():
    ids = DEMO.encode("a", add_special_tokens=False).ids * 5
    stream = TextStream(DEMO, stop=["a"], min_tokens=3)
    assert pieces(stream, ids) == ["a", "a", "a", ""]
    assert stream.stopped


def test_special_tokens_are_silent_unless_asked_for():
    assert pieces(TextStream(DEMO), [1, 1]) == ["", ""]
    assert "".join(pieces(TextStream(DEMO, skip_special_tokens=False), [1])) == "<|end|>"


def test_without_tokenizer_there_is_no_text():
    assert pieces(TextStream(None, [1, 2], stop=["x"]), [3, 4]) == ["", ""]


def test_text_needs_no_torch():
    code = "import sys, octavo_worker.agent.text, octavo_worker.contract.channel; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("stop", [("abcd", "bc"), ("bc", "abcd")])
def test_the_stop_string_that_is_complete_first_wins(stop):
    stops = StopStrings(stop)
    assert (stops.feed("xabcd"), stops.hit) == ("xa", True)


@pytest.mark.parametrize(("stop", "first", "rest"), [("abc", "xab", "c"), ("aab", "xaa", "b")])
def test_all_that_may_begin_a_stop_string_is_held_back(stop, first, rest):
    stops = StopStrings([stop])
    assert (stops.feed(first), stops.feed(rest), stops.hit) == ("x", "", True)


def test_hidden_tokens_have_no_text_and_are_no_context():
    ids = DEMO.encode("a b", add_special_tokens=False).ids
    shown = "".join(pieces(TextStream(DEMO, skip_special_tokens=False, hidden={1}), [ids[0], 1, *ids[1:], 0]))
    assert shown == "a b" + DEMO.decode([0], skip_special_tokens=False)
