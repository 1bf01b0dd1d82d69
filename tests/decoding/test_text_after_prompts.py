"""The text of an answer is what it adds to that of its prompt, whatever kind of tokenizer wrote both, and whichever
worker goes on with it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

import octavo_worker
from octavo_worker.agent.text import TextStream

WORDS = ("▁", "▁yes", "▁no", "no", "a", ",", "日", "�")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
OUTSIDE = ("é", "本", "🎉", "�", "\n")  # characters that are written as bytes


def bpe(pieces: tuple[str, ...], decoder: decoders.Decoder, *, byte_fallback: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=byte_fallback))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def llama2() -> Tokenizer:
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    return bpe((*WORDS, *BYTES), decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip]))


def gemma() -> Tokenizer:
    replace = decoders.Replace("▁", " ")
    return bpe((*WORDS, *BYTES), decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse()]))


def metaspace() -> Tokenizer:
    both = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    return bpe((*WORDS, *BYTES), both)


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((word, -1.0) for word in WORDS)], unk_id=0))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def wordpiece() -> Tokenizer:
    pieces = ("[UNK]", "yes", "no", "##no", "##日", "本")
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def with_ends_of_words() -> Tokenizer:
    return bpe(("yes</w>", "no</w>", "no", "日"), decoders.BPEDecoder("</w>"), byte_fallback=False)


def byte_level() -> Tokenizer:
    return Tokenizer.from_file(str(Path(octavo_worker.__file__).parent / "bundled/demo/tokenizer.json"))


KINDS: dict[str, Tokenizer] = {
    made.__name__: made() for made in (llama2, gemma, metaspace, unigram, wordpiece, with_ends_of_words, byte_level)
}


def units(tokenizer: Tokenizer) -> list[list[int]]:
    """Runs of tokens that are whole characters."""
    if tokenizer is KINDS["byte_level"]:
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in (" yes", "no", *OUTSIDE)]
    pieces = [[token] for piece, token in sorted(tokenizer.get_vocab().items()) if piece not in BYTES]
    as_bytes = [[tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()] for text in OUTSIDE]
    return [*pieces, *(run for run in as_bytes if None not in run)]


def pieces_of(tokenizer: Tokenizer, prompt: list[int], answer: list[int], *, taken_over_at: int = 0) -> list[str]:
    """One a token; a second stream replays the first tokens and goes on."""
    first, second = TextStream(tokenizer, prompt), TextStream(tokenizer, prompt)
    before = [first.feed(token) for token in answer[:taken_over_at]]
    assert [second.feed(token) for token in answer[:taken_over_at]] == before
    rest = answer[taken_over_at:]
    return before + [second.feed(token, "length" if at == len(rest) else None) for at, token in enumerate(rest, 1)]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_an_answer_adds_its_text_to_the_prompts(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    runs = st.lists(st.sampled_from(units(tokenizer)), max_size=14).map(lambda found: list(chain(*found)))
    prompt, answer = data.draw(runs, "prompt"), data.draw(runs, "answer")
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + answer)
    assume(not before.endswith("�" * 8) and set(before) != {"�"})  # a prompt that ends with nothing else has no end
    taken_over_at = data.draw(st.integers(0, max(0, len(answer) - 1)), "taken over at")
    assert before + "".join(pieces_of(tokenizer, prompt, answer, taken_over_at=taken_over_at)) == whole


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 40])
@pytest.mark.parametrize("outside", OUTSIDE)
def test_the_first_word_keeps_its_space_after_characters_outside_the_vocabulary(outside: str, count: int) -> None:
    tokenizer, count = KINDS["llama2"], min(count, 9) if outside == "�" else count
    prompt = [
        tokenizer.token_to_id("▁no"),
        *(tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in outside.encode() * count),
    ]
    yes = tokenizer.token_to_id("▁yes")
    assert pieces_of(tokenizer, prompt, [yes, yes]) == [" yes", " yes"]
    assert pieces_of(tokenizer, prompt[:-1], [yes]) == [" yes"], "the prompt ends inside a character"


def test_special_tokens_between_a_prompt_and_its_answer_take_no_space() -> None:
    tokenizer = KINDS["llama2"]
    no, yes, special = (tokenizer.token_to_id(piece) for piece in ("▁no", "▁yes", "<s>"))
    assert pieces_of(tokenizer, [no, *[special] * 100], [yes]) == [" yes"]
    assert pieces_of(tokenizer, [special] * 100, [yes]) == ["yes"]
