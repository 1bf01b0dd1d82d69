"""Docstrings, comments and documents have nouns for subjects: a request, a worker, a reader, not somebody."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRONOUNS = re.compile(r"\b(who|whoever|whom|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)
FOLDERS = ("shared", "gateway", "worker", "kernels", "tests", "benchmarks", "deploy", "docs")
COMMENTS = {
    ".lua": r"--.*",
    ".h": r"//.*",
    ".cpp": r"//.*",
    ".cu": r"//.*",
    ".cuh": r"//.*",
    ".yaml": r"#.*",
    ".md": r".*",
}


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", *COMMENTS}]
    left_out = {"build", "node_modules", "lab"}
    return sorted(p for p in [*found, *ROOT.glob("*.md")] if not left_out & set(p.relative_to(ROOT).parts))


def prose(path: Path) -> Iterator[str]:
    """The docstrings and comments of a source file, all of a document but its code."""
    text = path.read_text()
    if path.suffix == ".md":
        yield re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    elif path.suffix in COMMENTS:
        yield from re.findall(COMMENTS[path.suffix], text)
    else:
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value.value
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def test_no_pronoun_stands_for_a_request_or_a_worker() -> None:
    found = {
        str(path.relative_to(ROOT)): words
        for path in files()
        if path != Path(__file__) and (words := [word for part in prose(path) for word in PRONOUNS.findall(part)])
    }
    assert found == {}
