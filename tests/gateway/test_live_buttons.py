"""Buttons of the live page for operators, pressed in a real browser: lanes, dead letters, webhooks. Each asks once
more, and what was done is seen in the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chromium import Page, chromium
from waiting import eventually
from webhook_bench import CELL, HOOKS, HookBench

pytestmark = [pytest.mark.browser, pytest.mark.full]

NAME = "<b>nightly</b>"
ASK = "dialog.ask"


@pytest.fixture
def bench(redis_url: str) -> HookBench:
    return HookBench(redis_url)


@pytest.fixture
def page(bench: HookBench, own_gateway: Callable[..., str], tmp_path: Path) -> Iterator[Page]:
    """The page, with nothing on its console at the end, and no rule of axe that it breaks."""
    url = own_gateway()
    with chromium(tmp_path / "profile") as opened:
        opened.style()
        opened.open(url)
        opened.wait("document.querySelector('.lane') !== null")
        yield opened
        assert opened.violations() == []
        assert opened.problems == []


def claimed(bench: HookBench) -> list[str]:
    call = CELL.claim("m", "w", max_jobs=9, max_tokens=1 << 20, lease_ms=60_000, idle=True)
    return [found.job_id for found in bench.run(call).jobs]


def give_up(bench: HookBench) -> str:
    """A job whose worker crashed each time."""
    job = bench.submit(notify=False)
    for _ in range(3):
        call = CELL.claim("m", "w", max_jobs=1, max_tokens=1 << 20, lease_ms=60_000, idle=True)
        (found,) = bench.run(call).jobs
        bench.run(CELL.release([(found.job_id, found.token)], why="crashed"))
    return job


def given_up(bench: HookBench) -> list[str]:
    return [fields[b"id"].decode() for _, fields in bench.redis.xrange("{c00}:dlq")]


def agree(page: Page, words: str, *, within: str = "body") -> None:
    """Presses a button and says in the dialog that it was meant, once it was left and has changed nothing."""
    page.press(words, within=within)
    page.press("Leave it", within=ASK)
    page.wait(f"document.querySelector('{ASK}') === null")
    page.press(words, within=within)
    page.wait(f"document.querySelector('{ASK}') !== null")
    assert page.violations() == []
    page.press(words.split(" ")[0] if "again" not in words else words, within=ASK)
    page.wait(f"document.querySelector('{ASK}') === null")


def test_a_lane_is_paused_and_goes_on(page: Page, bench: HookBench) -> None:
    agree(page, "Pause", within=".lane")
    page.wait("document.querySelector('.lane').textContent.includes('paused for')")
    job = bench.submit(notify=False)
    assert claimed(bench) == []
    agree(page, "Resume", within=".lane")
    page.wait("!document.querySelector('.lane').textContent.includes('paused for')")
    assert claimed(bench) == [job]


def test_dead_letters_are_requeued_one_by_one_and_all_and_purged(page: Page, bench: HookBench) -> None:
    jobs = [give_up(bench) for _ in range(4)]
    page.wait("document.querySelectorAll('#dead').length && document.querySelectorAll('tbody input').length === 4")
    page.run(f"document.querySelector('input[aria-label=\"choose {jobs[0][-8:]}\"]').click()")
    agree(page, "Requeue 1 chosen")
    eventually(lambda: given_up(bench) == jobs[1:])
    assert len(claimed(bench)) == 1
    page.wait("document.querySelectorAll('tbody input').length === 3")
    agree(page, "Purge all 3")
    eventually(lambda: given_up(bench) == [])
    assert claimed(bench) == []
    page.wait("document.body.textContent.includes('No job was given up.')")
    again = {give_up(bench), give_up(bench)}
    page.wait("document.querySelectorAll('tbody input').length === 2")
    assert set(given_up(bench)) == again
    agree(page, "Requeue all 2 listed")
    eventually(lambda: given_up(bench) == [])
    assert len(claimed(bench)) == 2


def test_webhooks_that_failed_are_sent_again(page: Page, bench: HookBench) -> None:
    endpoint = bench.endpoint("zoo", name=NAME, url="https://example.com/hook/secret?key=1")
    events = [bench.event("zoo") for _ in range(3)]
    for tried in bench.claim():
        bench.run(HOOKS.commit(tried, "failed", answer="503"))
    row = "[...document.querySelectorAll('tr')].find(one => one.textContent.includes('zoo'))"
    page.wait(f"{row} && {row}.textContent.includes('503')")
    assert page.run(f"[{row}.cells[0].textContent, {row}.cells[2].textContent]") == [NAME, "https://example.com"]
    assert page.run("document.querySelectorAll('td b').length") == 0, "what a tenant wrote is text"
    assert page.run(f"document.querySelector('[data-figure=\"{endpoint} failed\"]').textContent") == "3"
    page.press(NAME)
    page.wait("document.querySelectorAll('dialog.sheet tbody tr').length === 3")
    assert "secret" not in page.text("body")
    assert page.violations() == []
    agree(page, "Send again", within="dialog.sheet")
    page.wait("document.querySelectorAll('dialog.sheet tbody button').length === 2")
    (first,) = bench.claim()
    assert first.event_id == events[2], "the latest failure stands first"
    page.press("Close", within="dialog.sheet")
    page.wait("document.querySelector('dialog') === null")
    agree(page, "Send again")
    assert {tried.event_id for tried in bench.claim()} == set(events[:2])
    page.wait(f"!{row}")
