"""Log-probabilities in OpenAI's two formats."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from octavo.terms.messages import Chunk, TokenLogprob, TopLogprob

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot hold."""


def finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST)


def token_text(token: bytes) -> str:
    """The token as text, with U+FFFD for bytes that are no whole character."""
    return token.decode("utf-8", "replace")


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """The chat format: one object a token, with its bytes."""
    content = [{**_chat_entry(item), "top_logprobs": [_chat_entry(top) for top in item.top]} for item in tokens]
    return {"content": content, "refusal": None}


def _chat_entry(item: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": token_text(item.token), "logprob": finite(item.logprob), "bytes": list(item.token)}


class TextOffsets:
    """Where each token begins in the text of its choice.

    The text of a token may come with a later token's: while a character is incomplete, or while it may begin a stop
    string. What a token stands for is known at once, so the offset of the next one is.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.position = 0  # characters that came
        self.held = ""  # characters that are still to come
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: bytes, text: str) -> int:
        """The offset of the next token; `text` came with it."""
        pending, _ = self._decoder.getstate()
        if pending and token and not _continues_character(token):  # earlier bytes that will never be a character
            self.held += self._decoder.decode(b"", final=True)
        offset = self.position + len(self.held)
        own = self._decoder.decode(token)
        self.position += len(text)
        self.held = self._still_to_come(own, text)
        return offset

    def _still_to_come(self, own: str, text: str) -> str:
        # Special tokens may have no text at all: what cannot begin a stop string is not held back.
        for expected in (self.held + own, self.held):
            if expected.startswith(text) and self._may_be_held(left := expected[len(text) :]):
                return left
        return ""

    def _may_be_held(self, text: str) -> bool:
        return not text or text.endswith("\ufffd") or any(stop.startswith(text) for stop in self._stop)


def _continues_character(token: bytes) -> bool:
    return 0x80 <= token[0] < 0xC0


class ToldLogprobs:
    """Log-probabilities of a sequence, each told with its offset once all the text of its token is out. There are no
    bytes of what a stop string cut off, nor of a token that only ended the sequence: it is no part of the text.

    `stop` are the strings for which text may have been held back.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.offsets = TextOffsets(stop)
        self._waiting: list[tuple[TokenLogprob, int]] = []

    def add(self, chunk: Chunk) -> list[tuple[TokenLogprob, int]]:
        """Entries that more tokens make certain; all that is left with the last."""
        told: list[tuple[TokenLogprob, int]] = []
        last = len(chunk.token_ids) - 1
        for place, (item, text) in enumerate(zip(chunk.logprobs or (), chunk.texts, strict=False)):
            self._waiting.append((item, self.offsets.add(item.token, text)))
            reason = chunk.finish_reason if place == last else None
            if reason == "stop":
                end = self.offsets.position
                self._waiting = [(_cut(item, end - offset), offset) for item, offset in self._waiting]
            if reason is not None or not self.offsets.held:
                told += self._waiting
                self._waiting = []
        return told


def _cut(item: TokenLogprob, shown: int) -> TokenLogprob:
    """A token of which so many characters are in the text."""
    own = token_text(item.token)
    return item if len(own) <= shown else replace(item, token=own[: max(0, shown)].encode())


class CompletionLogprobs:
    """The completions format: parallel lists, with every token's position in the text of its choice."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._told = ToldLogprobs(stop)
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float | None] | None] = []
        self._offsets: list[int] = []

    def add_prompt(self, tokens: Sequence[TokenLogprob], text: str) -> None:
        """The prompt, echoed as `text`. Special tokens that the worker put in front are listed, but take no room."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        widths = [len(decoder.decode(item.token)) for item in tokens]
        hidden = sum(widths) - len(text)
        for item, width in zip(tokens, widths, strict=True):
            covered = min(width, max(hidden, 0))
            hidden -= covered
            self._add(item, self._told.offsets.position)
            self._told.offsets.position += width - covered

    def add(self, chunk: Chunk) -> None:
        """Generated tokens."""
        for item, offset in self._told.add(chunk):
            self._add(item, offset)

    def skip(self, characters: int) -> None:
        """Text without tokens of its own came before: an echoed prompt."""
        self._told.offsets.position += characters

    def take(self) -> dict[str, Any]:
        """All added since the last call."""
        taken = {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }
        self._tokens, self._logprobs, self._top, self._offsets = [], [], [], []
        return taken

    def _add(self, item: TokenLogprob, offset: int) -> None:
        self._tokens.append(_name(item.token))
        self._logprobs.append(finite(item.logprob))
        self._top.append(None if item.logprob is None else _top(item))
        self._offsets.append(offset)


def _top(item: TokenLogprob) -> dict[str, float | None]:
    # The chosen token is always among them, even where it is none of the most likely.
    found = {_name(top.token): finite(top.logprob) for top in item.top}
    if item.token:
        found.setdefault(_name(item.token), finite(item.logprob))
    return found


def _name(token: bytes) -> str:
    """A token as a dictionary key: its text, or OpenAI's `bytes:` form where it is no whole character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
