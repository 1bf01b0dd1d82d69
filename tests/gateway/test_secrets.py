"""Secrets stand nowhere: not in Redis, logs, errors, metrics or lists of processes, wherever a client puts its key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import redis
from gateway_process import GatewayProcess
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S

from octavo.client.keys import KeyClient
from octavo.terms.access.api_keys import KeyDigests, KeyText, Scope, without_secrets
from octavo.terms.access.secret import Secret

SECRET = "a-secret-of-a-service-of-more-than-32-characters"
SHOWN = 12  # of a secret's characters: none in a row may stand anywhere


@pytest.fixture
async def keys(redis_url: str) -> AsyncIterator[KeyClient]:
    async with KeyClient(redis_url, KeyDigests(Secret([SECRET]))) as client:
        yield client


def parts(key: str) -> list[str]:
    secret = key.rpartition("-")[2]
    return [secret[start : start + SHOWN] for start in range(len(secret) - SHOWN + 1)]


def found(text: str, secrets: list[str]) -> list[str]:
    return [part for secret in secrets for part in parts(secret) if part in text]


async def misuse(http: httpx.AsyncClient, key: str) -> str:
    """Everything that comes back of requests with a key in the wrong places."""
    told = ""
    own = {"Authorization": f"Bearer {key}"}
    for path in ("/v1/jobs", "/v1/files", "/v1/batches", "/v1/models", "/v1/responses", "/v1/chat", "/no/such/path"):
        told += (await http.get(f"{path}/{key}", headers=own)).text
        told += (await http.get(path, headers=own, params={"after": key, "token": key, key: key})).text
    organization = "/v1/organization/projects"
    for path in (key, f"acme/api_keys/{key}", f"acme/service_accounts/{key}", f"{key}/api_keys"):
        told += (await http.get(f"{organization}/{path}", headers=own)).text
        told += (await http.request("DELETE", f"{organization}/{path}", headers=own)).text
    told += (await http.get("/v1/jobs", headers={"Authorization": f"Token {key}"})).text
    told += (await http.get("/v1/jobs", headers={"Authorization": f"Bearer {key[:-1]}"})).text
    told += (await http.post("/v1/jobs", headers=own, json={"model": key, "prompt": "x"})).text
    told += (await http.post("/v1/jobs", headers={**own, "X-Request-Id": "r"}, json={"model": MODEL, key: 1})).text
    told += (await http.post("/v1/jobs", headers=own, json={"model": MODEL, "prompt": "x"})).text
    return told


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


async def test_no_secret_stands_anywhere(
    redis_url: str, redis_sync: redis.Redis, keys: KeyClient, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    _, operator = await keys.create("ops", "first", scopes=frozenset({Scope.OPERATOR}))
    made, first = await keys.create("acme", "ci")
    flags = ("--secret-file", str(tmp_path / "secret"), "--require-keys", "--log-level", "debug")
    with GatewayProcess(redis_url, tmp_path / "log", *flags, own_start=True) as gateway:
        async with (
            ScriptedWorker(redis_url),
            httpx.AsyncClient(base_url=await gateway.url(), timeout=STALL_S) as http,
        ):
            own = {"Authorization": f"Bearer {operator.text}"}
            told = await misuse(http, first.text) + await misuse(http, operator.text)
            answer = await http.post(
                f"/v1/organization/projects/acme/api_keys/{made.id}/rotate", headers=own, json={"grace_seconds": 60}
            )
            second = answer.json()["value"]
            told += await misuse(http, second)
            told += (await http.get("/v1/organization/projects/acme/api_keys", headers=own)).text
            told += (await http.get("/metrics", headers=own)).text
        command = command_of(gateway.process.pid)
        log = (tmp_path / "log").read_text()
    secrets = [first.text, second, operator.text]
    assert made.id.removeprefix("key_") in log  # ids are no secrets, and tell which key was in the wrong place
    assert "--require-keys" in command
    assert found(log, [*secrets, f"x-{SECRET}"]) == []
    assert found(command, [*secrets, f"x-{SECRET}"]) == []
    assert found(told, [*secrets, f"x-{SECRET}"]) == []
    assert redis_sync.dbsize() > 5
    for name in redis_sync.scan_iter():
        stored = (name + (redis_sync.dump(name) or b"")).decode("latin-1")
        assert found(stored, [*secrets, f"x-{SECRET}"]) == [], name


def test_a_key_in_a_text_leaves_its_id() -> None:
    key = KeyText.new("key_01ARZ3NDEKTSV4RRFFQ69G5FAV")
    shown = "sk-oct-01ARZ3NDEKTSV4RRFFQ69G5FAV-***"
    for cut in (len(key.text), 40):
        assert without_secrets(f"/a/{key.text[:cut]}/b") == f"/a/{shown}/b"
