"""The engine as a real child process on a real socket pair."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from engine_driver import Driver, expected_tokens, make_request
from waiting import STALL_S

from octavo_worker.contract.channel import AgentChannel, EngineChannel
from octavo_worker.contract.messages import Abort, Ready, RequestFailed, Shutdown, StepOutput, TokenOutput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.grammar import Preparation
from octavo_worker.engine.loop import EngineLoop

FAKE_ENGINE = Path(__file__).parents[1] / "support" / "fake_engine.py"


@contextmanager
def engine_process(model: str = "fake", **options: int) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A child engine and the agent's end of its socket."""
    ours, theirs = socket.socketpair()
    settings = ModelOptions(model=model, check_integrity=True, **options).to_json()
    command = [sys.executable, str(FAKE_ENGINE), "--fd", str(theirs.fileno()), "--options", settings]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()
        process.kill()
        process.wait()
        process.stderr.close()


class Collected:
    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.ended: set[tuple[str, int]] = set()
        self.failed: dict[str, RequestFailed] = {}

    def take(self, output: StepOutput) -> None:
        for token in output.tokens:
            self._take_token(token)
        self.failed |= {failed.id: failed for failed in output.failed}

    def _take_token(self, token: TokenOutput) -> None:
        self.tokens.setdefault((token.id, token.index), []).append(token.token)
        if token.finish_reason:
            self.ended.add((token.id, token.index))


async def open_channel(sock: socket.socket) -> AgentChannel:
    channel = await AgentChannel.open(sock)
    ready = await channel.receive()
    assert isinstance(ready, Ready)
    return channel


async def collect(channel: AgentChannel, ends: int) -> Collected:
    """Read until `ends` sequences have ended or requests failed."""
    collected = Collected()
    while len(collected.ended) + len(collected.failed) < ends:
        collected.take(await asyncio.wait_for(channel.receive(), STALL_S))
    return collected


async def test_requests_run_in_the_child_and_give_the_right_tokens():
    with engine_process(num_blocks=40) as (process, sock):
        channel = await open_channel(sock)
        requests = [make_request(str(i), list(range(i, 60 + i)), n=1 + i % 3, max_tokens=20) for i in range(12)]
        for request in requests:
            channel.send_soon(request)
        collected = await collect(channel, sum(len(request.sequences) for request in requests))
        for request in requests:
            for sequence in request.sequences:
                assert collected.tokens[request.id, sequence.index] == expected_tokens(request, sequence.index)
        await channel.send(Shutdown())
        assert await asyncio.to_thread(process.wait, STALL_S) == 0


async def test_ready_says_what_the_engine_can_hold():
    with engine_process(num_blocks=40, max_model_len=300, max_running=9) as (_, sock):
        ready = await (await AgentChannel.open(sock)).receive()
    assert (ready.num_blocks, ready.block_size, ready.max_model_len, ready.max_running) == (40, 16, 300, 9)


async def test_abort_and_refusal_answer_within_a_step():
    with engine_process("fake:step_seconds=0.01") as (_, sock):
        channel = await open_channel(sock)
        channel.send_soon(make_request("long", [1, 2, 3], max_tokens=4000))
        channel.send_soon(make_request("bad", [10**6]))
        assert (await collect(channel, 1)).failed["bad"].code == "invalid_request"
        channel.send_soon(Abort("long"))
        channel.send_soon(make_request("next", [4, 5], max_tokens=5))
        collected = await collect(channel, 1)
        assert collected.ended == {("next", 0)}
        assert len(collected.tokens.get(("long", 0), [])) <= 5


def test_an_engine_that_falls_idle_with_wrong_accounts_ends():
    driver = Driver.create(11)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        preparation = Preparation(None, reason="no model")
        loop = EngineLoop(
            EngineChannel(theirs), driver.runner, driver.scheduler, preparation=preparation, check_integrity=True
        )
        driver.scheduler.pool.allocate(1)  # for no table
        with pytest.raises(AssertionError, match="1 references, tables hold 0"):
            loop.run()


async def test_deadline_passes_while_running():
    with engine_process("fake:step_seconds=0.01") as (_, sock):
        channel = await open_channel(sock)
        channel.send_soon(make_request("late", [1, 2, 3], max_tokens=4000, deadline=time.time() + 0.2))
        assert (await collect(channel, 1)).failed["late"].code == "deadline"


async def test_failing_step_ends_the_process_with_a_traceback():
    with engine_process("fake:crash_after=3") as (process, sock):
        channel = await open_channel(sock)
        channel.send_soon(make_request("a", [1, 2, 3], max_tokens=50))
        with pytest.raises(EOFError):
            await collect(channel, 1)
        assert await asyncio.to_thread(process.wait, STALL_S) == 1
        assert b"fails as it was told to" in process.stderr.read()


async def test_sequence_that_spoils_a_step_fails_alone():
    with engine_process("fake:poison=950") as (_, sock):
        channel = await open_channel(sock)
        good = make_request("good", [1, 2, 3], max_tokens=20)
        channel.send_soon(good)
        channel.send_soon(make_request("bad", [4, 950]))
        collected = await collect(channel, 2)
        assert collected.failed["bad"].code == "step_failed"
        assert collected.tokens["good", 0] == expected_tokens(good, 0)


async def test_engine_goes_when_its_agent_closes_the_socket():
    with engine_process("fake:step_seconds=0.01") as (process, sock):
        channel = await open_channel(sock)
        await channel.send(make_request("a", [1, 2, 3], max_tokens=4000))
        await channel.receive()
        channel.close()
        assert await asyncio.to_thread(process.wait, STALL_S) == 0


PARENT = """
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
child = subprocess.Popen([sys.executable, sys.argv[1], "--fd", str(theirs.fileno()), "--options", sys.argv[2]],
                         pass_fds=[theirs.fileno()])
theirs.close()
ours.recv(1)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_engine_goes_when_its_parent_is_killed():
    options = ModelOptions(model="fake").to_json()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(FAKE_ENGINE), options], stdout=subprocess.PIPE)
    engine = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    psutil.wait_procs([engine], timeout=STALL_S)
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE


async def test_signals_to_the_group_leave_the_engine_to_its_agent():
    with engine_process() as (process, sock):
        channel = await open_channel(sock)
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGINT)
        channel.send_soon(make_request("a", [1, 2], max_tokens=3))
        assert ("a", 0) in (await collect(channel, 1)).ended


async def test_idle_engine_sleeps():
    with engine_process() as (process, sock):
        channel = await open_channel(sock)
        channel.send_soon(make_request("a", [1, 2], max_tokens=3))
        await collect(channel, 1)
        await asyncio.sleep(0.2)  # threads that libraries have started wait for work in a loop at first
        engine = psutil.Process(process.pid)
        wakings, busy_s = engine.num_ctx_switches().voluntary, sum(engine.cpu_times()[:2])
        await asyncio.sleep(0.5)
        assert engine.num_ctx_switches().voluntary - wakings <= 1
        assert sum(engine.cpu_times()[:2]) - busy_s < 0.05


def test_entry_point_refuses_bad_options():
    command = [
        sys.executable,
        "-m",
        "octavo_worker.assembly.engine_process",
        "--fd",
        "0",
        "--options",
        '{"model": "x", "dtype": "int3"}',
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--options" in done.stderr
