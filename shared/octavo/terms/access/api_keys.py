"""API keys that the server keeps: their form, their scopes, and the digest that stands for one.

A key is `sk-oct-<id>-<secret><check>`. Its id is no secret. The secret has 256 random bits, so that a fast keyed hash
is as good as a slow one. The check tells typing errors from keys without a look-up.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field
from enum import StrEnum

from octavo.terms.access.secret import Secret

LABEL = "key"
KEY_PREFIX = "sk-oct-"
KEY_ID = "key_"

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_DIGITS, _CHECK_DIGITS = 43, 6  # of 256 bits, of CRC-32
_FORM = re.compile(r"(sk-oct-([0-9A-HJKMNP-TV-Z]{26})-[0-9A-Za-z]{43})([0-9A-Za-z]{6})")


class Scope(StrEnum):
    """A right of a key. `admin`: the keys of its own tenant; `operator`: everything, of all tenants."""

    JOBS_WRITE = "jobs:write"
    JOBS_READ = "jobs:read"
    BATCHES = "batches"
    WEBHOOKS = "webhooks"
    USAGE = "usage"
    ADMIN = "admin"
    OPERATOR = "operator"


OF_TENANTS = frozenset(Scope) - {Scope.ADMIN, Scope.OPERATOR}
"""Scopes of a key that was given none, and of a pair of the gateway's own."""


_ANYWHERE = re.compile(r"(sk-oct-[0-9A-HJKMNP-TV-Z]{26}-)[0-9A-Za-z]+")


def without_secrets(text: str) -> str:
    """A text for a log, in which a key may stand in the wrong place: its id alone is left."""
    return _ANYWHERE.sub(r"\1***", text)


@dataclass(frozen=True)
class KeyText:
    """A key as its holder has it, and the id in it."""

    id: str
    text: str = field(repr=False)

    @classmethod
    def new(cls, key_id: str) -> KeyText:
        """A key of this id with a new secret."""
        shown = f"{KEY_PREFIX}{key_id.removeprefix(KEY_ID)}-{_in_digits(secrets.randbits(256), _SECRET_DIGITS)}"
        return cls(key_id, shown + _check(shown))

    @classmethod
    def parse(cls, text: str) -> KeyText | None:
        """None for what is no key, or has a typing error."""
        found = _FORM.fullmatch(text)
        if found is None or not hmac.compare_digest(_check(found[1]), found[3]):
            return None
        return cls(KEY_ID + found[2], text)


class KeyDigests:
    """The digests by which a service knows its keys. Each line of its secret makes others; new keys get the first."""

    def __init__(self, secret: Secret) -> None:
        self._keys = secret.keys(LABEL)

    def of(self, key: KeyText) -> str:
        """The digest to keep of a new key."""
        return _digest(self._keys[0], key)

    def match(self, key: KeyText, kept: str) -> bool:
        """True if `kept` is a digest of the key. The time that it takes tells nothing of either."""
        is_right = False
        for line in self._keys:
            is_right |= hmac.compare_digest(_digest(line, key), kept)
        return is_right


def _digest(line: bytes, key: KeyText) -> str:
    return hmac.digest(line, key.text.encode(), hashlib.sha256).hex()


def _check(shown: str) -> str:
    return _in_digits(zlib.crc32(shown.encode()), _CHECK_DIGITS)


def _in_digits(value: int, count: int) -> str:
    digits = ""
    for _ in range(count):
        value, digit = divmod(value, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits
