"""The mailbox between a job's tokens and a client that may be slow."""

from __future__ import annotations

import asyncio

import pytest
from waiting import STALL_S

from octavo_gateway.http.streams import Mailbox


async def test_what_waits_leaves_in_one_piece():
    mailbox = Mailbox(lambda: None)
    for part in (b"a", b"b", b"c"):
        await mailbox.put(part)
    assert mailbox
    assert mailbox.take() == b"abc"
    assert not mailbox


async def test_a_full_mailbox_makes_its_own_stream_wait():
    slow = []
    mailbox = Mailbox(lambda: slow.append(1), limit=10)
    await mailbox.put(b"x" * 10)
    putting = asyncio.create_task(mailbox.put(b"y"))
    await asyncio.sleep(0.02)
    assert not putting.done()
    assert slow == [1]
    assert mailbox.take() == b"x" * 10 + b"y"
    await asyncio.wait_for(putting, STALL_S)
    putting = asyncio.create_task(mailbox.put(b"z" * 11))
    await asyncio.sleep(0.02)
    assert not putting.done()
    assert slow == [1]  # one client, however often it is waited for
    mailbox.take()
    await asyncio.wait_for(putting, STALL_S)


@pytest.mark.parametrize("early", [True, False])
async def test_waiting_ends_with_news_or_in_time(early):
    mailbox = Mailbox(lambda: None)
    waiting = asyncio.create_task(mailbox.wait(STALL_S if early else 0.02))
    await asyncio.sleep(0)
    if early:
        await mailbox.put(b"a")
    await asyncio.wait_for(waiting, STALL_S)
    assert bool(mailbox) is early
