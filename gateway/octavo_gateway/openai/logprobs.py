"""Log-probabilities in OpenAI's two formats."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from octavo.models import Chunk, TokenLogprob, TopLogprob
from octavo_gateway.logprobs import finite, token_text


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The chat format: one object a token, with its bytes."""
    content = [{**_chat_entry(item), "top_logprobs": [_chat_entry(top) for top in item.top]} for item in tokens]
    return {"content": content, "refusal": None}


def _chat_entry(item: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": token_text(item.token), "logprob": finite(item.logprob), "bytes": list(item.token)}


class CompletionLogprobs:
    """The completions format: parallel lists, with every token's position in the text of its choice."""

    def __init__(self) -> None:
        self._position = 0
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
            self._add(item, width - covered)

    def add(self, chunk: Chunk) -> None:
        for item, text in zip(chunk.logprobs or (), chunk.texts, strict=False):
            self._add(item, len(text))

    def skip(self, characters: int) -> None:
        """Text without tokens of its own came before: an echoed prompt."""
        self._position += characters

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

    def _add(self, item: TokenLogprob, characters: int) -> None:
        self._tokens.append(_name(item.token))
        self._logprobs.append(finite(item.logprob))
        self._top.append(None if item.logprob is None else _top(item))
        self._offsets.append(self._position)
        self._position += characters


def _top(item: TokenLogprob) -> dict[str, float | None]:
    # The chosen token is always among them, even where it is none of the most likely.
    found = {_name(top.token): finite(top.logprob) for top in item.top}
    found.setdefault(_name(item.token), finite(item.logprob))
    return found


def _name(token: bytes) -> str:
    """A token as a dictionary key: its text, or OpenAI's `bytes:` form where it is no whole character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
