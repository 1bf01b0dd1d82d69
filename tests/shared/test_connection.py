"""A line of one's own: replies in order, errors in their places, no caller gets the reply of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

from octavo.queue.connection import Line, connect, is_final


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[Line]:
    async with connect(redis_url) as pool:
        line = Line(pool)
        yield line
        await line.close()


async def test_replies_come_in_order_with_errors_in_their_places(line: Line) -> None:
    first, error, last = await line.exchange([("ECHO", "a"), ("LPOP",), ("ECHO", b"\x00z")])
    assert (first, last) == (b"a", b"\x00z")
    assert isinstance(error, redis.ResponseError)


async def test_a_connection_that_was_lost_comes_back_by_itself(line: Line, redis_url: str) -> None:
    (own,) = await line.exchange([("CLIENT", "ID")])
    with redis.Redis.from_url(redis_url) as other:
        assert other.client_kill_filter(_id=str(own)) == 1
    (again,) = await line.exchange([("CLIENT", "ID")])
    assert again != own


async def test_a_reply_that_nobody_waited_for_is_not_the_next_one(line: Line) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await line.exchange([("BLPOP", "nothing-comes-here", "0.3")])
    assert await line.exchange([("ECHO", "mine")]) == [b"mine"]


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("user_script:1: attempt to index local 'x' (a nil value) script: f, on @user_script:1.", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value script: on @user_script:1.", True),
        ("MISCONF Errors writing to the AOF file: No space left script: f, on @user_script:1.", False),
        ("NOREPLICAS Not enough good replicas to write. script: on @user_script:1.", False),
        ("The user executing the script can't publish to the channel script: f, on @user_script:1.", False),
        ("ACL failure in script: No permissions to access a key script: on @user_script:1.", False),
        ("BUSY Redis is busy running a script.", False),
    ],
)
def test_only_what_a_script_found_is_final(text: str, final: bool) -> None:
    """The rest passes or can be mended: it ends no job."""
    assert is_final(redis.ResponseError(text)) is final


async def test_no_server_is_an_error_that_redis_names() -> None:
    async with connect("redis://127.0.0.1:1") as pool:
        with pytest.raises(redis.ConnectionError):
            await Line(pool).exchange([("PING",)])
