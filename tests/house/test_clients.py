"""The table of programs that run against a gateway says what the tests run."""

from __future__ import annotations

import re

import pytest
import real_clients
from coding_agents import AGENTS
from real_clients import AGAIN, CLIENTS, PACKAGES, ROOT


def test_the_table_is_the_list() -> None:
    text = real_clients.DOCUMENT.read_text()
    assert text == real_clients.document(text), "rewrite it: python tests/support/real_clients.py"


def test_every_coding_agent_is_listed_with_its_routes() -> None:
    run: dict[str, set[str]] = {}
    for agent in AGENTS:
        run.setdefault(agent.package, set()).add(agent.path)
    assert run == {client.package: set(client.paths) for client in CLIENTS if client.broken == AGAIN}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.package)
def test_a_client_is_what_its_tests_run(client: real_clients.RealClient) -> None:
    tests = (ROOT / client.tests).read_text()
    if client.package not in PACKAGES:
        imported = client.package.removesuffix("-slim").replace("-", "_")
        assert re.search(rf"\b{imported}\b", tests)
        assert client.version
    elif client.broken != AGAIN:
        used = "".join(path.read_text() for path in (ROOT / "tests/support/node").glob("*.mjs"))
        assert f'"{client.package}"' in used
    if client.broken != real_clients.NOT_TRIED:
        assert "kill" in tests or "kill" in (ROOT / "tests/gateway/clients/test_killed_gateway.py").read_text()


def test_every_test_of_a_client_is_listed() -> None:
    folder = ROOT / "tests" / "gateway" / "clients"
    files = {f"tests/gateway/clients/{path.name}" for path in folder.glob("test_*.py")}
    listed = {client.tests for client in CLIENTS}
    assert files - listed == {"tests/gateway/clients/test_killed_gateway.py"}


def test_versions_of_packages_of_node_are_exact() -> None:
    assert {name: version for name, version in PACKAGES.items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)} == {}
