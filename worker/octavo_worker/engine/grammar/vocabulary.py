"""The bytes behind the token ids of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from octavo.dialects.grammar.grammars import GrammarError

Row = NDArray[np.int32]
Rows = NDArray[np.int32]

_IN_STRING = r'[^"\\\x00-\x1F\x7F]'  # what JSON writes as it is
SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_IN_STRING}{{1,{most}}}" for most in (3, 6, 10, 15, 30)),
    f"{_IN_STRING}+",
)
"""Sets of tokens that the library allows as a whole where all of them may come: it looks at the others alone. Masks
are the same with any. A string with room for n characters takes the longest slice of up to n. Finer steps than the
library's own (10, 30) make the dearest masks cheaper, those of a string that is nearly as long as it may be."""


class Vocabulary:
    """The tokens of `tokenizer.json`, for a head of `rows` rows of logits. Rows without a token are padding.

    `stop_ids` are all ids that end a sequence: one of them at least, for the library would guess. `words` is the length
    of a mask: int32, bit i % 32 of word i // 32 is token i; `stop_words` are the words that have stop tokens. Making
    it takes about a second for 128,000 tokens.
    """

    def __init__(self, tokenizer_json: str, *, rows: int, stop_ids: Iterable[int]) -> None:
        """Raises `GrammarError` for stop ids outside the rows, or a tokenizer that the library cannot read."""
        self.rows = rows
        self.words = (rows + 31) // 32
        self.stop_ids = frozenset(stop_ids)
        outside = sorted(token for token in self.stop_ids if not 0 <= token < rows)
        if not self.stop_ids or outside:
            raise GrammarError(f"the stop tokens must be ids below {rows}, one at least: {outside or 'none is given'}")
        described = json.loads(tokenizer_json)
        ids = {*_model_ids(described), *(token["id"] for token in described.get("added_tokens") or ())}
        if max(ids, default=0) >= rows:
            tokenizer_json = _without_rowless(described, rows)
        try:
            self.library = LLTokenizer(
                tokenizer_json, n_vocab=rows, eos_token=sorted(self.stop_ids), slices=list(SLICES)
            )
        except ValueError as error:
            raise GrammarError(f"no grammar can be followed with this tokenizer: {error}") from None
        self.stops = self.mask(self.stop_ids)
        self.stop_words = np.flatnonzero(self.stops)
        self.texts = ~self.stops
        self.unconstrained = self.mask({token for token in ids if token < rows} - self.stop_ids)

    @classmethod
    def of_folder(cls, folder: Path, *, rows: int, stop_ids: Iterable[int]) -> Vocabulary:
        """The vocabulary of a model's folder. Raises `GrammarError` for one without a tokenizer.json."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise GrammarError(f"no grammar can be followed: {folder.name} has no tokenizer.json")
        return cls(path.read_text(encoding="utf-8-sig"), rows=rows, stop_ids=stop_ids)

    def is_free(self, token: int) -> bool:
        """True if a token may come where no grammar holds yet: it has a text, and it does not end the sequence."""
        return 0 <= token < self.rows and bool(self.unconstrained[token // 32] >> (token % 32) & 1)

    def mask(self, tokens: Iterable[int]) -> Row:
        """Exactly these."""
        bits = np.zeros(self.words * 32, np.uint8)
        bits[list(tokens)] = 1
        mask = np.packbits(bits, bitorder="little").view(np.int32)
        mask.flags.writeable = False
        return mask


def _model_ids(described: dict[str, object]) -> Iterable[int]:
    """The ids of the model's own tokens: a map of them (BPE, WordPiece), or a list in their order (Unigram)."""
    model = described.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        return vocab.values()
    return range(len(vocab)) if isinstance(vocab, list) else ()


def _without_rowless(described: dict[str, object], rows: int) -> str:
    """Without added tokens that the head cannot choose, as of a text model whose tokenizer knows of images."""
    added = described.get("added_tokens")
    kept = [token for token in added if token["id"] < rows] if isinstance(added, list) else []
    return json.dumps({**described, "added_tokens": kept}, ensure_ascii=False)
