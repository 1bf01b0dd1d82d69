"""Requests of tests wait as long as tests wait for anything: httpx ends one after 5 s, which a busy machine takes."""

from __future__ import annotations

import ast

import pytest
from sources import ROOT, sources

ASKS = {"AsyncClient", "Client", "delete", "get", "post", "put", "request", "stream"}


def impatient(source: str) -> list[int]:
    """Lines on which httpx is asked and no limit is given."""
    if "httpx." not in source:
        return []
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "httpx"
        and node.func.attr in ASKS
        and all(keyword.arg != "timeout" for keyword in node.keywords)
    ]


def test_no_request_of_a_test_has_the_limit_of_httpx() -> None:
    found = {str(path.relative_to(ROOT)): impatient(path.read_text()) for path in sources("tests")}
    assert len(found) > 100
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("httpx.get(url)", [1]),
        ("with httpx.Client(base_url=url) as http:\n    http.get('/')", [1]),
        ("httpx.stream('GET', url, timeout=300)", []),
        ("httpx.Response(200)", []),
    ],
)
def test_a_request_without_a_limit_is_seen(source: str, lines: list[int]) -> None:
    assert impatient(source) == lines
