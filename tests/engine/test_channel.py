"""Frames over a socket pair, cut anywhere."""

from __future__ import annotations

import socket

import msgspec
import pytest
from engine_driver import make_request

from octavo_worker.contract.channel import EngineChannel, encode_frame
from octavo_worker.contract.messages import (
    Abort,
    EngineStats,
    Logprob,
    RequestStarted,
    Shutdown,
    StepOutput,
    TokenOutput,
)


@pytest.fixture
def ends():
    agent, engine = socket.socketpair()
    with agent, engine:
        yield agent, EngineChannel(engine)


def test_messages_arrive_in_order_whatever_the_cuts(ends):
    agent, channel = ends
    sent = [
        make_request("a", [1, 2], n=2, salt=b"\x00\xff", logit_bias={5: -1.5}),
        Abort("a", 1),
        Abort("b"),
        Shutdown(),
    ]
    data = b"".join(encode_frame(message) for message in sent)
    received = []
    for byte in range(len(data)):
        agent.send(data[byte : byte + 1])
        received += channel.receive(wait=False)
    assert received == sent
    assert channel.receive(wait=False) == []


def test_several_messages_in_one_read(ends):
    agent, channel = ends
    agent.sendall(encode_frame(Abort("a")) * 100)
    assert len(channel.receive(wait=True)) == 100


def test_closed_end_is_the_end(ends):
    agent, channel = ends
    agent.close()
    with pytest.raises(EOFError):
        channel.receive(wait=False)


def test_garbage_is_refused_and_never_executed(ends):
    agent, channel = ends
    agent.sendall(b"\x00\x00\x00\x02\x91\x01")
    with pytest.raises(msgspec.ValidationError):
        channel.receive(wait=True)


def test_oversized_frame_is_refused_before_it_is_read(ends):
    agent, channel = ends
    agent.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="over the limit"):
        channel.receive(wait=True)


def test_step_output_survives_the_wire():
    logprob = Logprob(-0.5, [(3, -0.5), (4, -1.0)])
    output = StepOutput(
        [TokenOutput("a", 1, 3, logprob, "stop")], [RequestStarted("a", 16, [None, logprob])], [], EngineStats(steps=3)
    )
    assert msgspec.msgpack.decode(encode_frame(output)[4:], type=StepOutput) == output
