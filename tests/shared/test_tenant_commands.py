"""`octavo tenants` and `octavo usage`, at a real server."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from octavo.cli.app import build_app
from octavo.terms.errors import RateLimited, TenantSuspended


@pytest.fixture
def run(redis_url: str) -> Any:
    """A command's output. Fails if its exit code is another one."""

    def call(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(build_app(), [*words, "--redis-url", redis_url])
        assert done.exit_code == code, done.output
        return done.output

    return call


def test_limits_are_set_listed_and_taken_away(world: Any, run: Any) -> None:
    assert "no tenant has limits" in run("tenants", "ls")
    assert run("tenants", "set", "acme", "requests_per_minute=1", "weight=2.5").strip() == (
        "acme: requests_per_minute=1 weight=2.5"
    )
    run("tenants", "set", "acme", "max_tokens=9", "--model", "toy")
    run("tenants", "set", "zoo", "waiting=3", "--model", "toy")
    world.enqueue()
    with pytest.raises(RateLimited):
        world.enqueue()
    assert "requests_per_minute=1 weight=2.5" in run("tenants", "ls")
    listed = json.loads(run("tenants", "ls", "--json"))["tenants"]
    assert [one["tenant"] for one in listed] == ["acme", "zoo"]
    assert {"of": "model", "name": "toy", "limits": {"max_tokens": 9}} in listed[0]["scopes"]
    run("tenants", "set", "acme", "requests_per_minute=none")
    world.enqueue()
    (one,) = json.loads(run("tenants", "ls", "zoo", "--json"))["tenants"]
    assert one["scopes"][0]["limits"] == {"waiting": 3}


@pytest.mark.parametrize(
    "words",
    [
        ("set", "acme", "nope=1"),
        ("set", "acme", "waiting=x"),
        ("set", "acme", "waiting"),
        ("set", "a:b", "waiting=1"),
        ("set", "acme", "waiting=1", "--model", "m", "--key", "k"),
    ],
)
def test_what_is_no_limit_is_wrong_usage(run: Any, words: tuple[str, ...]) -> None:
    run("tenants", *words, code=2)


def test_a_suspended_tenant_gets_nothing_in_and_loses_its_jobs_where_that_is_asked_for(world: Any, run: Any) -> None:
    running = world.enqueue()
    claim = world.claim_one()
    waiting, other = world.enqueue(), world.enqueue(tenant="zoo")
    run("tenants", "suspend", "acme")
    with pytest.raises(TenantSuspended):
        world.enqueue()
    assert world.status(waiting) == "queued"
    assert "2 jobs cancelled" in run("tenants", "suspend", "acme", "--cancel")
    assert (world.status(waiting), world.status(other)) == ("cancelled", "queued")
    assert world.append(claim, 0, [1]).state == "cancel"
    assert world.status(running) == "running"
    run("tenants", "set", "acme", "suspended=none")
    world.enqueue()


def test_usage_is_shown_by_columns_as_table_json_and_csv(world: Any, run: Any) -> None:
    assert "nothing was used" in run("usage")
    for tenant, key in (("acme", "k1"), ("acme", "k2"), ("zoo", "")):
        world.enqueue(tenant=tenant, key_id=key)
        world.finish(world.claim_one(), tokens=0)
    assert "acme" in run("usage")
    lines = json.loads(run("usage", "--by", "key,model", "--since", "2h", "--json"))["usage"]
    assert [(line["key"], line["model"], line["requests"], line["input_tokens"]) for line in lines] == [
        ("", "toy", 1, 3),
        ("k1", "toy", 1, 3),
        ("k2", "toy", 1, 3),
    ]
    rows = list(csv.DictReader(io.StringIO(run("usage", "--by", "tenant,batch", "--since", "30d", "--csv"))))
    assert [(row["tenant"], row["batch"], row["requests"]) for row in rows] == [
        ("acme", "False", "2"),
        ("zoo", "False", "1"),
    ]
    (line,) = json.loads(run("usage", "--tenant", "zoo", "--json"))["usage"]
    assert (line["tenant"], line["requests"], line["failures"]) == ("zoo", 1, 0)
    run("usage", "--by", "colour", code=2)
    run("usage", "--since", "7w", code=2)
