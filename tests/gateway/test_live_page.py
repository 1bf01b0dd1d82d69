"""The live page in a real browser, over a service of the bundled model: its figures and its buttons."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chromium import Page, chromium
from cli_driver import Cli, Up, start_up
from waiting import STALL_S, eventually

from octavo import Client, JobRequest, SamplingParams
from octavo.client.blocking import Job

pytestmark = [pytest.mark.browser, pytest.mark.full]

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TOKENS = 900
LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"width": 390, "height": 844},
    "narrow dark": {"dark": True, "width": 390, "height": 844},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_LOG_LEVEL", "warning")  # its words wait in a pipe that is read at its end
        running = start_up(Cli(tmp_path_factory.mktemp("up")), flags=("--controls",))
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def page(service: Up, tmp_path: Path) -> Iterator[Page]:
    with chromium(tmp_path / "profile") as opened:
        opened.style()
        opened.open(f"http://127.0.0.1:{service.port}/")
        opened.wait("document.querySelectorAll('.worker canvas').length >= 2")
        yield opened
        assert opened.problems == []


def redis_url(service: Up) -> str:
    return json.loads((service.cli.state_dir / "up.json").read_text())["redis_url"]


def stats(service: Up) -> dict[str, Any]:
    return httpx.get(f"http://127.0.0.1:{service.port}/v1/stats", timeout=STALL_S).json()


def pictures(folder: Path) -> Path:
    return Path(os.environ.get("OCTAVO_PICTURES", folder))


def send(page: Page, tokens: int) -> str:
    """Sends the prompt that the page begins with. The id of its job, once it streams."""
    for name, value in (("max_tokens", tokens), ("seed", 7)):
        page.run(f"document.querySelector('input[name={name}]').value = {value}")
    page.press("Send")
    page.wait("document.querySelector('#text').textContent.length > 40")
    return str(page.run("fetch('/v1/jobs?limit=1').then(reply => reply.json()).then(({ data }) => data[0].id)"))


def crowd(client: Client) -> list[Job]:
    """Jobs beside which none of a worker ends before a slow browser has pressed a button or drawn a takeover."""
    return client.submit_many([JobRequest(model="demo", prompt="x", sampling=SamplingParams(max_tokens=TOKENS))] * 16)


def test_a_worker_is_killed_by_its_button_and_the_text_is_the_same(page: Page, service: Up) -> None:
    job_id = send(page, TOKENS)
    with Client(redis_url(service)) as client:
        others = crowd(client)
        job = client.job(job_id)
        victim = job.info().worker
        assert victim is not None
        card = f"[...document.querySelectorAll('.worker')].find(one => one.textContent.includes({json.dumps(victim)}))"
        page.run(f"{card}.setAttribute('id', 'victim')")
        page.press("Kill", within="#victim")
        page.press("Leave it", within="dialog.ask")
        page.wait("document.querySelector('dialog') === null")
        assert job.info().worker == victim, "it was asked once more, and left it"
        page.press("Kill", within="#victim")
        others += crowd(client)
        page.press("Kill", within="dialog.ask")
        page.wait("document.querySelector('ol.moves')?.textContent.includes('takeover')")
        for other in others:
            other.cancel()
        page.wait("document.querySelector('#stream-state').textContent.includes('completed')")
        info, text = job.info(), page.text("#text")
        assert (info.attempts, info.tokens) == (2, TOKENS), "its worker died, and another went on"
        assert text == job.result().text
        again = client.submit("ROMEO:", model="demo", max_tokens=TOKENS, temperature=0.8, seed=7)
        assert again.result().text == text, "as if nothing had happened"
        assert page.run("Number(document.querySelector('#place').textContent)") == TOKENS
        assert "takeover" in page.text("ol.moves")
    eventually(lambda: len(stats(service)["workers"]) >= 2 and stats(service)["running"] == 0)


COLOURS = """one => {
    const copy = new OffscreenCanvas(one.width, 3).getContext('2d', {willReadFrequently: true});
    copy.drawImage(one, 0, 0);
    return new Set(copy.getImageData(0, 0, one.width, 3).data).size;
}"""
"""How many values the first pixels of a canvas have. Chromium warns of a canvas that is itself read again and again."""


def test_figures_are_those_of_the_stats(page: Page, service: Up) -> None:
    """Jobs are submitted again as they end: a busy machine may look too late."""
    with Client(redis_url(service)) as client:
        jobs: list[Job] = []

        def shown() -> dict[str, str]:
            figures = "[...document.querySelectorAll('[data-figure]')]"
            return page.run(f"Object.fromEntries({figures}.map(one => [one.dataset.figure, one.textContent]))")

        def agree() -> bool:
            jobs[:] = [job for job in jobs if not job.info().status.is_terminal]
            for number in range(5 - len(jobs)):
                fields = {"max_tokens": 800, "ignore_eos": True, "tenant": f"t{number}"}
                jobs.append(client.submit("x", model="demo", **fields))
            now = stats(service)
            (lane,) = [one for one in now["lanes"] if one["priority"] == "normal"]
            expected = {
                "queued": now["queued"],
                "running": now["running"],
                "dead": now["dead"],
                "demo normal running": lane["running"],
                "demo normal waiting": lane["waiting"],
            }
            found = shown()
            same = now["running"] == 5 and {name: int(found[name]) for name in expected} == expected
            return same and page.run("document.querySelectorAll('.chip').length") == 5 and is_drawn()

        def is_drawn() -> bool:
            told = page.run(
                "[...document.querySelectorAll('canvas')].map(one => one.getAttribute('aria-label')).join()"
            )
            drawn = page.run(f"Math.max(...[...document.querySelectorAll('canvas')].map({COLOURS}))")
            return " used" in told and drawn > 4

        eventually(agree)
        for job in jobs:
            job.cancel()


def test_what_a_tenant_wrote_is_text(page: Page, service: Up, tmp_path: Path) -> None:
    with Client(redis_url(service), tenant="default") as client:
        jobs = [client.submit(MARKUP, model="demo", max_tokens=1000, ignore_eos=True)]

        def is_open() -> bool:
            """A busy machine may look too late for a job."""
            if jobs[-1].info().status.is_terminal:
                jobs.append(client.submit(MARKUP, model="demo", max_tokens=1000, ignore_eos=True))
            page.run("document.querySelector('dialog') || document.querySelector('.chip')?.click(), 0")
            return bool(page.run("document.querySelector('dialog pre') !== null"))

        eventually(is_open)
        assert MARKUP in page.text("dialog pre")
        assert page.run("document.querySelectorAll('dialog img, dialog script').length") == 0
        assert page.violations() == []
        page.picture(pictures(tmp_path) / "job.png", whole=False)
        page.wait("document.querySelectorAll('[data-code]').length > 1")
        code = page.run("[...document.querySelectorAll('[data-code]')].map(one => one.dataset.code)")
        assert f"127.0.0.1:{service.port}/v1/jobs" in code[0]
        program: dict[str, Any] = {}
        exec(code[1].split("for event")[0].replace("Client()", "recorded"), {"recorded": Recorder(program)} | program)
        assert page.run("document.querySelectorAll('.timeline li').length") >= 2
        page.press("Close", within="dialog")
        jobs[-1].cancel()


class Recorder:
    """In the place of a client: what a program submits."""

    def __init__(self, seen: dict[str, Any]) -> None:
        self.seen = seen

    def submit(self, request: Any) -> None:
        assert request.prompt == MARKUP


def test_a_page_whose_stream_is_cut_goes_on_where_it_was(page: Page, service: Up) -> None:
    job_id = send(page, TOKENS)
    page.press("Disconnect")
    place, text = page.run("Number(document.querySelector('#place').textContent)"), page.text("#text")
    page.press("Resume")
    page.wait("document.querySelector('#stream-state').textContent.includes('completed')")
    with Client(redis_url(service)) as client:
        assert 0 < place < TOKENS
        assert page.text("#text") == client.job(job_id).result().text
        assert page.text("#text").startswith(text)


def test_the_page_in_every_look_is_no_obstacle(page: Page, service: Up, tmp_path: Path) -> None:
    """axe, where npm has installed it, and a picture of each for people, in the folder that OCTAVO_PICTURES names."""
    folder = pictures(tmp_path)
    send(page, 1000)
    with Client(redis_url(service)) as client:
        others = [client.submit("y", model="demo", max_tokens=1000, ignore_eos=True) for _ in range(6)]
        page.wait("document.querySelectorAll('.chip').length > 5")
        for name, look in LOOKS.items():
            page.style(**look)
            page.wait("new Promise(done => setTimeout(() => done(true), 800))")
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than the window"
            page.picture(folder / f"{name}.png")
            width, height = struct.unpack(">II", (folder / f"{name}.png").read_bytes()[16:24])
            assert width == look.get("width", 1280)
            assert height > 500
            assert page.violations() == []
        for job in others:
            job.cancel()


def test_every_button_is_reached_by_the_keyboard(page: Page) -> None:
    page.run("document.body.focus()")
    reached = set()
    for _ in range(40):
        for kind in ("rawKeyDown", "keyUp"):
            page.send("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.add(page.run("document.activeElement.textContent.trim() || document.activeElement.name"))
    assert {"Add a worker", "Pause", "Kill", "Send", "demo", "max_tokens", "API"} <= reached
