"""Grammars are tried while their clients wait: tenants in turn, for as long as a client stays, given a processor."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until

from octavo.dialects.grammar import checks
from octavo.dialects.grammar.grammars import Grammar
from octavo.dialects.grammar.trials import NotWanted
from octavo.terms.errors import Busy


class HeldTrials:
    """Holds each regex until it is let go, or not wanted any more; `busy` is for no machine to tell."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.dropped: list[str] = []
        self.go_on = threading.Event()

    def validate(self, grammar: Grammar, *, is_wanted: Callable[[], bool]) -> None:
        if grammar.text == "busy":
            raise Busy("no time was left: retry later")
        if grammar.text.startswith("quick"):
            return
        self.held.append(grammar.text)
        while not self.go_on.is_set():
            if not is_wanted():
                self.dropped.append(grammar.text)
                raise NotWanted
            time.sleep(0.001)


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldTrials]:
    held = HeldTrials()
    monkeypatch.setattr(checks, "Trials", lambda: held)
    yield held
    held.go_on.set()


TURN = [{"role": "user", "content": "hi"}]


def asked(path: str, regex: str) -> dict[str, Any]:
    match path:
        case "/v1/jobs":
            return {"prompt": "hi", "grammar": {"kind": "regex", "text": regex}, "sampling": {"max_tokens": 2}}
        case "/v1/completions":
            return {"prompt": "hi", "guided_regex": regex, "max_tokens": 2}
        case "/v1/chat":
            turn = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
            return {"id": "c", "messages": [turn], "guided_regex": regex, "max_tokens": 2}
        case _:
            return {"messages": TURN, "guided_regex": regex, "max_tokens": 2}


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/completions", "/v1/chat", "/v1/chat/completions"])
async def test_work_ends_when_its_asker_has_gone(own_gateway, trials, path):
    url = own_gateway()
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        asking = asyncio.create_task(http.post(path, json={"model": MODEL, **asked(path, "slow")}))
        await until(lambda: trials.held == ["slow"])
        asking.cancel()
        await until(lambda: trials.dropped == ["slow"])


async def test_tenants_take_turns(own_gateway, redis_url, trials):
    url = own_gateway(api_keys="many:a,other:b")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http, ScriptedWorker(redis_url):

        def ask(key: str, regex: str) -> Any:
            body = {"model": MODEL, **asked("/v1/completions", regex)}
            return http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})

        many = [asyncio.create_task(ask("a", f"slow{n}")) for n in range(12)]
        await until(lambda: len(trials.held) == 2)
        assert (await ask("b", "quick")).status_code == 200
        assert len(trials.held) == 2
        trials.go_on.set()
        assert {(await reply).status_code for reply in many} == {200}


async def test_a_machine_that_cannot_tell_says_so(own_gateway, redis_url, trials):
    url = own_gateway()
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http, ScriptedWorker(redis_url) as worker:
        for path in ("/v1/jobs", "/v1/completions", "/v1/chat", "/v1/chat/completions"):
            reply = await http.post(path, json={"model": MODEL, **asked(path, "busy")})
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert reply.json()["error"]["code"] == "busy"
        assert worker.seen == []
