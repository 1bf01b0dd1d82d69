"""Addresses of servers: each form is understood or refused in words, and no message has a secret of one."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from killable_server import server_program
from tiers import examples
from typer.testing import CliRunner

from octavo import AsyncClient
from octavo.cli.app import build_app
from octavo.queue.address import parse_address, shown
from octavo.queue.connection import connect, connect_sync, outage, refusal
from octavo.service.server import EmbeddedServer
from octavo.terms.errors import ServerUnavailable

# What a secret is made of in these tests occurs in no message of ours; between the parts stand special characters.
PART = "Zq7"
SECRETS = st.lists(st.sampled_from([PART, "@", "/", "#", "?", ":", "%", "&", "=", "[", " ", "é"]), min_size=1).map(
    lambda parts: PART + "".join(parts) + PART
)
ESCAPED = SECRETS.map(lambda secret: quote(secret, safe=""))
FORMS = (
    "redis://{}@127.0.0.1:1/0",
    "redis://:{}@127.0.0.1:1",
    "redis://user:{}@127.0.0.1:1/0",
    "redis://user:{}/0",
    "redis://{}",
    "redis://127.0.0.1:1/0?password={}",
    "redis://127.0.0.1:1/0?username=u&password={}",
    "redis://127.0.0.1:1/{}",
    "redis://127.0.0.1:1/0?{}",
    "redis://127.0.0.1:1/0?{}=1",
    "redis://127.0.0.1:1/0?db={}",
    "redis://127.0.0.1:1/0?socket_timeout={}",
    "redis://127.0.0.1:1/0#{}",
    "rediss://:{}@127.0.0.1:1",
    "rediss://127.0.0.1:1?ssl_password={}&ssl_keyfile=/none&ssl_certfile=/none",
    "rediss://127.0.0.1:1?ssl_cert_reqs={}",
    "redis://127.0.0.1:1?ssl_password={}",
    "unix://:{}@/nowhere/socket",
    "unix:///nowhere/socket?password={}",
    "redis+sentinel://:{}@127.0.0.1:1,127.0.0.1:2/service",
    "redis+sentinel://127.0.0.1:1/service?sentinel_password={}",
    "redis+sentinel://127.0.0.1:1/service/0?password={}",
    "redis+cluster://user:{}@127.0.0.1:1",
    "rediss+cluster://127.0.0.1:1?ssl_password={}&password={}",
    "{}",
    "http://:{}@127.0.0.1",
)


def told(error: BaseException) -> Iterator[str]:
    """Everything that can be read of an error: itself, its causes and contexts, a traceback."""
    yield "".join(traceback.format_exception(error))
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__  # type: ignore[assignment]


async def messages_of(url: str) -> list[str]:
    """Messages about an address to a person or a log, up to the first command that fails."""
    texts = [shown(url)]
    attempts: tuple[Callable[[], object], ...] = (
        lambda: parse_address(url),
        lambda: connect_sync(url, retries=0).ping(),
    )
    for attempt in attempts:
        try:
            texts.append(repr(attempt()))
        except (redis.RedisError, ServerUnavailable, OSError) as error:
            texts += told(error)
            texts += [outage(url, error), refusal(url, error)]
    try:
        async with AsyncClient(url) as client:
            texts += [repr(client._redis), repr(client._listener), repr(client._redis.connection_pool)]
            await client.models()
    except ServerUnavailable as error:
        texts += told(error)
    return texts


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.queue.connection._RETRIES", 0)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(8))
@given(secret=st.one_of(SECRETS, ESCAPED))
def test_no_message_has_a_secret_of_an_address(form: str, secret: str) -> None:
    if (form == "redis://{}" and "/" not in secret) or (form == "redis://user:{}/0" and "@" in secret):
        return  # this is the name of a host, or ends with one
    url = form.replace("{}", secret)
    for text in asyncio.run(messages_of(url)):
        assert PART not in text


@pytest.mark.parametrize("command", ["doctor", "workers", "jobs ls", "top --once"])
@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0?password=Zq7",
        "redis://:Zq7#Zq7@127.0.0.1:1",
        "redis://:Zq7@127.0.0.1:1",
        "redis+sentinel://:Zq7@127.0.0.1:1/service",
        "redis+cluster://u:Zq7@127.0.0.1:1",
    ],
)
def test_no_command_says_a_password(command: str, url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    result = CliRunner().invoke(build_app(), [*command.split(), "--redis-url", url])
    assert result.exit_code != 0
    assert PART not in result.output + caplog.text + "".join(told(result.exception or SystemExit()))


async def test_what_a_server_repeats_of_a_password_is_not_passed_on(tmp_path: Path) -> None:
    """One without AUTH calls it an unknown command, and names its arguments."""
    program = server_program(tmp_path, "--rename-command", "AUTH", "LOGIN")
    with EmbeddedServer(data_dir=tmp_path / "data", binary=program) as server:
        url = server.url.replace("//", "//user:Zq7-Zq7@")
        for text in await messages_of(url):
            assert PART not in text


async def test_a_socket_serves(tmp_path: Path) -> None:
    program = server_program(tmp_path, "--unixsocket", str(tmp_path / "socket"))
    with EmbeddedServer(data_dir=tmp_path / "data", binary=program):
        url = f"unix://{tmp_path}/socket?db=1"
        with connect_sync(url) as connection:
            assert connection.ping()
        async with AsyncClient(url) as client:
            assert await client.models() == []
            assert await client._listener.ping()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h?socket_timeout=3", "socket_timeout"),
        ("redis://h?decode_responses=1", "decode_responses"),
        ("redis://h?protocol=3", "protocol"),
        ("redis://h?ssl_password=x", "rediss"),
        ("redis://h?db=one", "db"),
        ("redis://h?max_connections=0", "max_connections"),
        ("redis://h?nonsense=1", "health_check_interval"),
        ("redis://h/one", "database"),
        ("redis://h:123456", "host:port"),
        ("redis://a,b", "redis+sentinel://"),
        ("redis://:a/b@h", "%2F"),
        ("unix://tmp/socket", "three slashes"),
        ("redis+sentinel://h", "/service"),
        ("redis+cluster://h/1", "one database"),
        ("h:6379", "redis://"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(url: str, said: str) -> None:
    with pytest.raises(ServerUnavailable, match=said.replace("+", r"\+")):
        connect(url)


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("db=3", "db", 3),
        ("client_name=me", "client_name", "me"),
        ("socket_connect_timeout=1.5", "socket_connect_timeout", 1.5),
        ("health_check_interval=9", "health_check_interval", 9),
        ("socket_keepalive=no", "socket_keepalive", False),
        ("username=a&password=b%2540", "password", "b%40"),
    ],
)
def test_options_of_an_address_reach_connections(option: str, name: str, value: object) -> None:
    pool = connect(f"redis://h?{option}").connection_pool
    assert getattr(pool.make_connection(), name) == value
    assert connect("redis://h?max_connections=7&timeout=2").connection_pool.max_connections == 7
