"""The master secret: where it is read from, and the keys that each purpose has of it."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from octavo.terms.access.read_tokens import ReadTokens, expiry_of
from octavo.terms.access.secret import Secret

OLD, NEW = "an old secret of more than 32 characters", "a new secret of more than 32 characters"
JOB, OTHER = "g00_01ARZ3NDEKTSV4RRFFQ69G5FAV", "g00_01ARZ3NDEKTSV4RRFFQ69G5FAW"


def expanded(secret: str, info: bytes) -> bytes:
    """RFC 5869, step by step, for 32 bytes."""
    prk = hmac.new(b"octavo", secret.encode(), hashlib.sha256).digest()
    block, okm, number = b"", b"", 1
    while len(okm) < 32:
        block = hmac.new(prk, block + info + bytes([number]), hashlib.sha256).digest()
        okm, number = okm + block, number + 1
    return okm[:32]


def test_a_purpose_has_a_key_for_each_line_and_no_other_purpose_has_it() -> None:
    secret = Secret([NEW, "", f" {OLD} "])
    assert secret.keys("one") == (expanded(NEW, b"one"), expanded(OLD, b"one"))
    assert not set(secret.keys("one")) & set(secret.keys("two"))
    assert NEW not in repr(secret)


def test_lines_come_from_the_variable_first_and_then_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"# since May\n{NEW}\n\n{OLD}\n")
    in_file = Secret.load(None, file)
    assert in_file is not None
    assert in_file.keys("") == Secret([NEW, OLD]).keys("")
    both = Secret.load(f"{OLD}\n", file)
    assert both is not None
    assert both.keys("") == Secret([OLD, NEW, OLD]).keys("")
    assert Secret.load(None, None) is None
    assert Secret.load(" \n", None) is None


@pytest.mark.parametrize(
    ("text", "content", "said"),
    [
        ("short", None, "OCTAVO_SECRET: line 1 has fewer than 32"),
        (f"{NEW}\nshort", None, "OCTAVO_SECRET: line 2 has fewer than 32"),
        (None, "short", "OCTAVO_SECRET_FILE: line 1 has fewer than 32"),
        (None, "# nothing\n\n", "OCTAVO_SECRET_FILE has no line"),
        (None, "", "names no file"),
    ],
)
def test_a_bad_secret_is_told_by_its_place(tmp_path: Path, text: str | None, content: str | None, said: str) -> None:
    file = None
    if content is not None:
        file = tmp_path / "shorter"
        if content:
            file.write_text(content)
    with pytest.raises(ValueError, match=said) as raised:
        Secret.load(text, file)
    assert "short\n" not in f"{raised.value}\n"


def test_a_token_is_of_one_job_and_one_moment() -> None:
    tokens = ReadTokens(Secret([NEW]))
    token = tokens.sign(JOB, 1000)
    assert tokens.expiry(token, JOB) == 1000
    assert tokens.expiry(token, OTHER) is None
    assert tokens.expiry("2" + token[1:], JOB) is None
    assert ReadTokens(Secret([OLD])).expiry(token, JOB) is None


def test_the_first_line_signs_and_all_verify() -> None:
    before, between, after = (ReadTokens(Secret(lines)) for lines in ([OLD], [NEW, OLD], [NEW]))
    assert between.expiry(before.sign(JOB, 7), JOB) == 7
    assert before.expiry(between.sign(JOB, 7), JOB) is None
    assert after.expiry(between.sign(JOB, 7), JOB) == 7


def test_no_other_spelling_of_a_token_counts() -> None:
    tokens = ReadTokens(Secret([NEW]))
    token = tokens.sign(JOB, 1000)
    seconds, _, code = token.partition(".")
    last = chr(ord(code[-1]) + 1)
    others = [
        *(
            "",
            ".",
            seconds,
            code,
            f".{code}",
            f"{seconds}.",
            f"0{token}",
            f"+{token}",
            f" {token}",
            f"{token}=",
            token * 2,
        ),
        *(
            f"{token}\n",
            f"{seconds}.{code[:-1]}",
            f"{seconds}.{code[:-1]}{last}",
            f"1000.0.{code}",
            f"\u0661000.{code}",
        ),
        *(token.upper(), token.lower(), f"{seconds}.{code}\u00e9", "9" * 400 + f".{code}", f"{seconds}.{'A' * 43}"),
    ]
    assert [other for other in others if tokens.expiry(other, JOB) is not None] == []


@pytest.mark.parametrize(
    ("seconds", "finished_at", "expires_at"),
    [(60, None, 160), (5000, None, 1100), (60, 90.5, 160), (5000, 90.5, 1090), (5000, -900.0, 100)],
)
def test_a_token_does_not_outlive_its_job(seconds: int, finished_at: float | None, expires_at: int) -> None:
    assert expiry_of(100.0, seconds, finished_at, 1000) == expires_at
