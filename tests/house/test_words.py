"""Docstrings, comments and documents have nouns for subjects: a request, a worker, a reader, not somebody."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sources import ROOT, sources, statements

PRONOUNS = re.compile(r"\b(who|whoever|whom|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)
HEADLESS = ("What", "Those", "That", "Whether", "Of", "They")
"""First words that name nothing. A docstring opens with its noun, that of a predicate with "True if"."""
PRODUCT = ("shared", "gateway", "worker", "kernels")
UNSAID = {"AssertionError", "NotImplementedError", "CancelledError"}
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
    found = [path for folder in FOLDERS for path in sources(folder, {".py", *COMMENTS})]
    return sorted(path for path in [*found, *ROOT.glob("*.md")] if "lab" not in path.relative_to(ROOT).parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of all strings that stand by themselves: docstrings of modules, classes, functions and names."""
    for node in statements(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def prose(path: Path) -> Iterator[str]:
    """The docstrings and comments of a source file, all of a document but its code."""
    text = path.read_text()
    if path.suffix == ".md":
        yield re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    elif path.suffix in COMMENTS:
        yield from re.findall(COMMENTS[path.suffix], text)
    else:
        yield from (docstring for _, docstring in docstrings(path))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def test_no_pronoun_stands_for_a_request_or_a_worker() -> None:
    found = {
        str(path.relative_to(ROOT)): words
        for path in files()
        if path != Path(__file__)
        and PRONOUNS.search(path.read_text())  # to look for comments takes ten times as long
        and (words := [word for part in prose(path) for word in PRONOUNS.findall(part)])
    }
    assert found == {}


def test_a_docstring_names_its_noun_first() -> None:
    headless = re.compile(rf"\s*({'|'.join(HEADLESS)})\b")
    python = [path for path in files() if path.suffix == ".py"]
    found = [
        f"{path.relative_to(ROOT)}:{line} {text[:60]!r}"
        for path in python
        for line, text in docstrings(path)
        if headless.match(text)
    ]
    assert python
    assert found == []


def test_a_comment_of_a_kernel_names_its_noun_first() -> None:
    headless = re.compile(r"^(?!\s*//).*\n\s*//\s*((?:What|Those|That|Whether)\b.*)", re.MULTILINE)
    sources = [path for path in files() if path.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    found = [
        f"{path.relative_to(ROOT)} {text}" for path in sources for text in headless.findall("\n" + path.read_text())
    ]
    assert sources
    assert found == []


def public_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods without an underscore, `__init__` with its class's docstring in front of its own."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public_functions(child)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and (
            not child.name.startswith("_") or child.name == "__init__"
        ):
            yield child


def raised(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names of the errors that a function's own body makes, without those of functions inside of it."""
    names, left = set[str](), list[ast.AST](function.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            names.add(node.exc.func.id)
        left += ast.iter_child_nodes(node)
    return {name for name in names if name[:1].isupper()} - UNSAID


def test_a_public_function_says_what_it_raises() -> None:
    """Or which status an endpoint gives. Classes may say it for their `__init__`."""
    silent, speaking = [], 0
    for path in (path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PRODUCT):
        if {"bench", "demo_model"} & set(path.parts):
            continue
        of_class = {
            child: node for node in statements(tree(path)) if isinstance(node, ast.ClassDef) for child in node.body
        }
        for function in public_functions(tree(path)):
            told = ast.get_docstring(function) or ""
            if function.name == "__init__" and function in of_class:
                told += ast.get_docstring(of_class[function]) or ""
            if names := raised(function):
                is_said = re.search(r"\b[Rr]aise|refuse|`[45]\d\d`", told) or any(name in told for name in names)
                speaking += bool(is_said)
                silent += (
                    [] if is_said else [f"{path.relative_to(ROOT)}:{function.lineno} {function.name} {sorted(names)}"]
                )
    assert speaking > 100
    assert silent == []
