"""The map of blocks: which request has which, by the pool's own accounts. On a fake model."""

from __future__ import annotations

from array import array
from itertools import pairwise

from engine_driver import Driver, make_request, prompt
from fake_runner import DelayedRunner
from hypothesis import given
from hypothesis import strategies as st
from slab_sizes import shared_memory

from octavo_worker.contract.messages import PinPrefix
from octavo_worker.engine.kv.block_report import (
    CACHED,
    ELSEWHERE,
    FIRST_OWNER,
    FREE,
    PINNED,
    QUARANTINED,
    SHARED,
    block_report,
)
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.cost import PreemptionPolicy


def codes_of(scheduler: Scheduler) -> tuple[list[int], list[str], int]:
    """The code of each block, device first; the owners; how many are the device's."""
    report = block_report(scheduler)
    codes, lengths = array("H", report.codes), array("I", report.lengths)
    cells = [code for code, length in zip(codes, lengths, strict=True) for _ in range(length)]
    assert len(cells) == report.device + report.host + sum(report.windows or ()) + sum(report.states or ())
    assert all(one != other for one, other in pairwise(codes)), "neighbours are one run"
    return cells, report.owners, report.device


def owner_of(code: int, owners: list[str]) -> str | None:
    place = (code & ~(SHARED | PINNED)) - FIRST_OWNER
    return owners[place] if place >= 0 else None


ASKED = st.tuples(st.integers(1, 130), st.integers(0, 2), st.integers(1, 3))
"""Tokens of a prompt, the beginning that it has in common with others, and samples."""


@given(st.lists(ASKED, min_size=1, max_size=8), st.data())
def test_every_block_is_of_the_request_whose_table_has_it(asked: list[tuple[int, int, int]], data: st.DataObject):
    """Prompts that share beginnings, parallel samples, some of which have ended."""
    driver = Driver.create(120, token_budget=4096)
    for number, (length, family, n) in enumerate(asked):
        driver.add(make_request(str(number), prompt(length, 300 * family), max_tokens=2 + number, n=n))
    for _ in range(data.draw(st.integers(1, 9))):
        driver.step()
    cells, owners, _ = codes_of(driver.scheduler)
    pool, expected = driver.scheduler.pool, {}
    for sequence in driver.scheduler.holders():
        for block in sequence.table.held:
            expected.setdefault(block, sequence.request.id)
    for block, code in enumerate(cells, 1):
        assert owner_of(code, owners) == expected.get(block)
        assert bool(code & SHARED) == (pool.refs[block] > 1)
        if block not in expected:
            assert code == (CACHED if pool.hash_of(block) else FREE)
    assert cells.count(CACHED) == pool.cached


def test_swapped_blocks_are_the_hosts_and_leave_through_quarantine():
    """8 blocks: two prompts of 3 blocks each grow until the second is preempted."""
    driver = Driver.create(9, 4, runner={"num_host_blocks": 21}, policy=PreemptionPolicy("swap"))
    for number in range(2):
        driver.add(make_request(str(number), prompt(12, 100 * number), max_tokens=20))
    seen = set()
    while driver.scheduler.has_requests:
        driver.step()
        cells, owners, device = codes_of(driver.scheduler)
        on_host = {owner_of(code, owners) for code in cells[device:]} - {None}
        assert on_host == {one.request.id for one in driver.scheduler.holders() if one.is_swapped}
        seen |= on_host
        assert cells[:device].count(QUARANTINED) == driver.scheduler.pool.quarantined
    assert seen == {"1"}


def test_pinned_blocks_are_told_apart_also_those_that_a_request_has():
    driver = Driver.create(40)
    driver.scheduler.pin(PinPrefix("system", prompt(64)))
    while driver.scheduler.has_requests or driver.scheduler.has_output:
        driver.step()
    pins = driver.scheduler.kv.pins.blocks
    cells, _, _ = codes_of(driver.scheduler)
    assert len(pins) == 4
    assert {cells[block - 1] for block in pins} == {CACHED | PINNED}
    driver.add(make_request("a", prompt(80), max_tokens=9))
    driver.step()
    cells, owners, _ = codes_of(driver.scheduler)
    assert {(owner_of(cells[block - 1], owners), cells[block - 1] & PINNED) for block in pins} == {("a", PINNED)}


def test_what_the_other_group_has_is_elsewhere() -> None:
    blocks, memory = shared_memory(20, 20, 8, (3, 1))
    driver = Driver.create(blocks, 8, runner=memory, token_budget=40)
    driver.add(make_request("a", prompt(60), max_tokens=9))
    driver.step()
    shared = driver.scheduler.kv.shared
    assert shared is not None
    cells, _, device = codes_of(driver.scheduler)
    assert device == blocks - 1
    windows = cells[device:]
    assert len(windows) == memory["window_blocks"] - 1
    here = [pool.total for pool in (shared.blocks, shared.windows)]
    assert [sum(code != ELSEWHERE for code in part) for part in (cells[:device], windows)] == here
    assert cells[0] == windows[-1] == ELSEWHERE


def test_windows_and_states_have_their_owners_behind_the_blocks() -> None:
    """Few enough of all that sequences are swapped, among them samples that share, and a pin; with a step in flight,
    which keeps states."""
    memory = {"num_host_blocks": 41, "window_blocks": 20, "layer_window": 20, "host_window_blocks": 21}
    memory |= {"state_slots": 8, "host_state_slots": 9}
    driver = Driver.create(29, 8, device=DelayedRunner, runner=memory, policy=PreemptionPolicy("swap"), token_budget=40)
    driver.scheduler.pin(PinPrefix("system", prompt(16)))
    for number, n in enumerate((1, 2, 1, 1)):
        driver.add(make_request(str(number), prompt(20 + 30 * number), max_tokens=30, n=n))
    kv = driver.scheduler.kv
    assert kv.windows is not None
    assert kv.states is not None
    seen = set()
    while driver.busy:
        driver.step()
        seen |= {"pending"} if kv.states.snapshots.pending else set()
        report = block_report(driver.scheduler)
        cells, owners, _ = codes_of(driver.scheduler)
        assert (report.windows, report.states) == ((19, 20), (7, 8))
        begin = report.device + report.host
        holders = driver.scheduler.holders()
        for kind, pool, host, size, tables in (
            ("window", kv.windows.pool, kv.windows.host.pool, 19, [each.windows.blocks for each in holders]),
            ("slot", kv.states.pool, kv.states.host, 7, [each.live.slots for each in holders if each.live]),
        ):
            shown, hosted = cells[begin : begin + size], cells[begin + size : begin + size + host.total]
            begin += size + host.total
            having = [each.request.id for each in holders if kind == "window" or each.live]
            expected: dict[int, str] = {}
            for owner, table in zip(having, tables, strict=True):
                for block in table:
                    expected.setdefault(block, owner)
            for first, codes in ((1, shown), (host.first + 1, hosted)):
                for block, code in enumerate(codes, first):
                    assert owner_of(code, owners) == expected.get(block)
            assert sum(code & ~PINNED == CACHED for code in shown) >= pool.cached
            assert sum(bool(code & SHARED) for code in shown) <= pool.shared
            assert shown.count(FREE) == pool.free
            seen |= {kind} if any(code & SHARED for code in shown) else set()
            seen |= {f"host {kind}"} if any(code >= FIRST_OWNER for code in hosted) else set()
            seen |= {f"pinned {kind}"} if any(code & PINNED for code in shown) else set()
    driver.runner.close()
    assert seen == {"pending", *(f"{what}{kind}" for what in ("", "host ", "pinned ") for kind in ("window", "slot"))}
