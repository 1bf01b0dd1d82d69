"""The master secret of a service: each purpose has keys of its own, made from it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from octavo.terms.text_files import read_lines

LEAST_CHARACTERS = 32
MAKE_ONE = "make one with `openssl rand -hex 32`"
_SALT = b"octavo"


class Secret:
    """Lines of which each is a secret. The first one signs and all verify, so that a new one is written above the old
    one. No key tells anything of a line or of the keys of another label."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Raises ValueError for a short line, by its number, and for no line at all."""
        self._lines = tuple(line.strip().encode() for line in lines if line.strip())
        if not self._lines:
            raise ValueError(f"it has no line: {MAKE_ONE}")
        for number, line in enumerate(self._lines, 1):
            if len(line) < LEAST_CHARACTERS:
                raise ValueError(f"line {number} has fewer than {LEAST_CHARACTERS} characters: {MAKE_ONE}")

    def __repr__(self) -> str:
        return "Secret(...)"

    @classmethod
    def load(cls, text: str | None, file: Path | None) -> Secret | None:
        """The lines of `OCTAVO_SECRET`, then those of the file that `OCTAVO_SECRET_FILE` names; None without both.
        Raises ValueError, which repeats nothing of them, also for a file without a line: it may have been cut."""
        lines = [line for line in (text or "").splitlines() if line.strip()]
        source = "OCTAVO_SECRET"
        if file is not None:
            source = "OCTAVO_SECRET_FILE" if not lines else "OCTAVO_SECRET with OCTAVO_SECRET_FILE"
            if not file.exists():  # it may be the secret itself, given in the wrong place
                raise ValueError("OCTAVO_SECRET_FILE names no file: give one with a secret a line")
            in_file = [line for line in read_lines(file) if line and not line.startswith("#")]
            if not in_file:
                raise ValueError(f"OCTAVO_SECRET_FILE has no line: {MAKE_ONE}")
            lines += in_file
        if not lines:
            return None
        try:
            return cls(lines)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    def keys(self, label: str) -> tuple[bytes, ...]:
        """Keys of one purpose, 32 bytes each, the one that signs first: HKDF with SHA-256 (RFC 5869)."""
        return tuple(_derived(line, label.encode()) for line in self._lines)


def _derived(secret: bytes, info: bytes) -> bytes:
    extracted = hmac.digest(_SALT, secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)  # one block is all that is needed
