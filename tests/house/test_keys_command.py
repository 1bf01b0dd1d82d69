"""`octavo keys`, at a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import Result
from typer.testing import CliRunner

from octavo.cli.app import build_app
from octavo.queue.tenants.names import TenantKeys
from octavo.terms.access.api_keys import OF_TENANTS, KeyDigests, KeyText
from octavo.terms.access.secret import Secret

SECRET = "a secret of a service, of more than 32 characters"
DIGESTS = KeyDigests(Secret([SECRET]))


@pytest.fixture
def octavo(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OCTAVO_SECRET", SECRET)
    monkeypatch.setenv("REDIS_URL", redis_url)

    def run(*words: str, text: str | None = None) -> Result:
        return CliRunner().invoke(build_app(), ["keys", *words], input=text)

    return run


def digest(connection: redis.Redis, key_id: str) -> str:
    return (connection.hget(TenantKeys().api_key(key_id), "dg") or b"").decode()


def test_the_key_is_all_of_standard_output(octavo: Any, redis_sync: redis.Redis) -> None:
    made = octavo("create", "--tenant", "acme", "--scope", "operator", "--expires", "90d")
    assert made.exit_code == 0, made.output
    key = KeyText.parse(made.stdout.strip())
    assert key is not None
    assert key.text not in made.stderr
    assert DIGESTS.match(key, digest(redis_sync, key.id))
    (listed,) = json.loads(octavo("ls", "--json").stdout)["keys"]
    assert (listed["id"], listed["tenant"], listed["scopes"]) == (key.id, "acme", ["operator"])
    assert listed["expires_at"] - listed["created_at"] == pytest.approx(90 * 86_400, abs=1)
    assert "value" not in listed
    assert digest(redis_sync, key.id) not in octavo("ls").output


def test_a_key_goes_into_a_file_of_its_owner_alone(octavo: Any, redis_sync: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "key"
    made = octavo("create", "--model", "demo", "--key-file", str(file), "--json")
    told = json.loads(made.stdout)
    key = KeyText.parse(file.read_text().strip())
    assert key is not None
    assert key.text not in made.output
    assert (file.stat().st_mode & 0o777, told["id"], told["models"]) == (0o600, key.id, ["demo"])
    assert frozenset(told["scopes"]) == OF_TENANTS
    again = octavo("create", "--key-file", str(file))
    assert (again.exit_code, len(redis_sync.keys("*:k:*"))) == (2, 1)
    assert file.read_text().strip() == key.text


def test_rotation_keeps_the_id(octavo: Any, redis_sync: redis.Redis) -> None:
    first = KeyText.parse(octavo("create").stdout.strip())
    assert first is not None
    second = KeyText.parse(octavo("rotate", first.id, "--grace", "12h").stdout.strip())
    assert second is not None
    assert (second.id, second.text != first.text) == (first.id, True)
    assert DIGESTS.match(second, digest(redis_sync, first.id))
    kept = redis_sync.hmget(TenantKeys().api_key(first.id), "pdg", "pexp")
    assert DIGESTS.match(first, kept[0].decode())
    for refused in (("rotate", first.id, "--grace", "31d"), ("rotate", first.id, "--grace", "soon")):
        assert octavo(*refused).exit_code == 2
    assert octavo("revoke", first.id).exit_code == 0
    assert octavo("rotate", first.id).exit_code == 1


def test_keys_that_leaked_are_revoked_from_standard_input_and_no_argument_shows_one(
    octavo: Any, redis_sync: redis.Redis
) -> None:
    keys = [octavo("create").stdout.strip() for _ in range(3)]
    ids = [parsed.id for key in keys if (parsed := KeyText.parse(key)) is not None]
    refused = octavo("revoke", keys[0])
    assert (refused.exit_code, keys[0] in refused.output) == (2, False)
    done = octavo("revoke", text=f"{keys[0]}\n\n{ids[1]}\n")
    assert done.exit_code == 0
    assert not any(key in done.output for key in keys)
    assert [redis_sync.hexists(TenantKeys().api_key(one), "rev") for one in ids] == [True, True, False]
    assert octavo("revoke", ids[0]).exit_code == 1
    assert [key["id"] for key in json.loads(octavo("ls", "--json").stdout)["keys"]] == ids[2:]


def test_a_key_needs_the_secret_of_the_gateways(octavo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_SECRET")
    refused = octavo("create")
    assert refused.exit_code != 0
    assert "secret" in str(refused.exception or refused.output)
