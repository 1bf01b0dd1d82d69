"""The keys that a gateway was started with: `tenant:key` pairs of its environment and of a file."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from octavo.client.requests import checked_tenant
from octavo.terms.errors import InvalidRequest
from octavo.terms.text_files import read_lines
from octavo_gateway.auth.callers import Caller, operator_of
from octavo_gateway.settings import GatewaySettings

_SHA256 = "sha256:"
_HEX = re.compile(r"[0-9a-fA-F]{64}")


class Keyring:
    """The pairs of a gateway, as digests. Without any, and where it is not told to `require_keys`, every request is of
    the operator `default`."""

    def __init__(
        self, pairs: Iterable[tuple[str, bytes]] = (), operators: Collection[str] = (), *, require_keys: bool = False
    ) -> None:
        """`pairs` are tenants and SHA-256 digests of their keys."""
        self._callers = [
            (digest, operator_of(tenant) if tenant in operators else Caller(tenant)) for tenant, digest in pairs
        ]
        self._require_keys = require_keys

    @classmethod
    def of(cls, settings: GatewaySettings) -> Keyring:
        """Raises ValueError as `load` does, and where keys are required that no secret can verify."""
        pairs = settings.api_keys.get_secret_value() if settings.api_keys else None
        if settings.require_keys and not pairs and settings.api_keys_file is None and settings.master_secret() is None:
            raise ValueError("OCTAVO_REQUIRE_KEYS needs OCTAVO_SECRET or OCTAVO_SECRET_FILE, or no key is ever right")
        return cls.load(pairs, settings.api_keys_file, settings.operators, require_keys=settings.require_keys)

    @classmethod
    def load(
        cls, pairs: str | None, file: Path | None, operators: Collection[str] = (), *, require_keys: bool = False
    ) -> Keyring:
        """From `tenant:key,tenant:key` and from a file with one pair a line, of which the key may be the hexadecimal
        digits of its digest behind `sha256:`; `operators` are some of these tenants. Raises ValueError for anything
        else, a file without any included: it may have been cut, and must not admit every request. Its message has
        places and no words, since any of these may be a key."""
        found = [(tenant, _digest(key)) for tenant, key in _pairs((pairs or "").split(","), "pair", "OCTAVO_API_KEYS")]
        if file is not None:
            if not file.exists():  # it may be a key, too, given in the wrong place
                raise ValueError("OCTAVO_API_KEYS_FILE names no file: give one with tenant:key a line")
            lines = ["" if line.startswith("#") else line for line in read_lines(file)]
            in_file = [(tenant, _digest_in_file(key, str(file))) for tenant, key in _pairs(lines, "line", str(file))]
            if not in_file:
                raise ValueError(f"{file} has no API keys: write one tenant:key a line, or leave the file out")
            found += in_file
        tenants = {tenant for tenant, _ in found}
        for number, operator in enumerate(operators, 1):
            if operator not in tenants:
                raise ValueError(f"name {number} of OCTAVO_OPERATORS has no API key: add one, written tenant:key")
        return cls(found, operators, require_keys=require_keys)

    @property
    def is_open(self) -> bool:
        """No key is asked for."""
        return not self._callers and not self._require_keys

    def find(self, key: bytes) -> Caller | None:
        """The sender by the key of a pair."""
        presented = hashlib.sha256(key).digest()
        found = None
        for digest, caller in self._callers:  # always all of them: time must not tell which one matched
            if hmac.compare_digest(digest, presented):
                found = caller
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _digest_in_file(key: str, source: str) -> bytes:
    if not key.startswith(_SHA256):
        return _digest(key)
    if not _HEX.fullmatch(digits := key.removeprefix(_SHA256)):
        raise ValueError(f"{source} has a digest that is not sha256: and 64 hexadecimal digits")
    return bytes.fromhex(digits)


def _pairs(texts: Iterable[str], unit: str, source: str) -> list[tuple[str, str]]:
    """Tenants and their keys; empty texts count as places only. Raises ValueError."""
    found = []
    for number, text in enumerate(texts, 1):
        tenant, _, key = (part.strip() for part in text.partition(":"))
        if not text.strip():
            continue
        try:
            checked_tenant(tenant)
        except InvalidRequest:
            key = ""
        if not key:
            raise ValueError(
                f"{unit} {number} of {source} is not written tenant:key, the tenant 1 to 64 letters, digits and _.@-"
            )
        found.append((tenant, key))
    return found
