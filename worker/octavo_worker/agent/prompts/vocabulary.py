"""The bytes that single tokens stand for, which decoding cannot tell: a token may be a part of a character."""

from __future__ import annotations

import json
import re

from tokenizers import Tokenizer

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"  # SentencePiece's visible space


class TokenBytes:
    """Token id to bytes, for byte-level vocabularies (GPT-2's alphabet) and SentencePiece ones with byte fallback."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {token: added.content for token, added in tokenizer.get_added_tokens_decoder().items()}
        self._alphabet = _byte_alphabet() if '"ByteLevel"' in json.dumps(_decoder(tokenizer)) else None
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        """Empty for an id that the vocabulary does not have."""
        if token not in self._known:
            self._known[token] = self._look_up(token)
        return self._known[token]

    def _look_up(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._alphabet is not None:
            return b"".join(self._alphabet.get(character) or character.encode() for character in piece)
        if fallback := _BYTE_FALLBACK.fullmatch(piece):
            return bytes([int(fallback[1], 16)])
        return piece.replace(_WORD_START, " ").encode()


def _decoder(tokenizer: Tokenizer) -> object:
    return json.loads(tokenizer.to_str()).get("decoder")


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's printable stand-ins: bytes that print stand for themselves, the others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet.update({chr(0x100 + place): bytes([byte]) for place, byte in enumerate(hidden)})
    return alphabet
