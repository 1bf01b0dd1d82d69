"""Two groups of blocks: what each holds of a sequence, and where a prompt begins that both know in part."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import Driver, assert_complete, expected_beams, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner
from proposers import AnswerBook, speculate

from octavo_worker.contract.messages import AddRequest, BeamOptions, PinPrefix
from octavo_worker.contract.windows import WindowBlocks
from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.memory.cost import CostModel, Decision, PreemptionPolicy, Victim

SIZE, WINDOW = 8, 20
LIVE = 4
"""Blocks that a window touches at most: 20 tokens, of which the first may be the last of its block."""


def engine(
    device: type[FakeRunner] = FakeRunner,
    *,
    blocks: int = 200,
    windows: int = 60,
    hosts: int = 0,
    slots: int = 0,
    **options: Any,
) -> Driver:
    memory = {"window_blocks": windows, "layer_window": WINDOW, "host_window_blocks": hosts, "num_host_blocks": hosts}
    memory |= {"state_slots": slots}
    return Driver.create(blocks, SIZE, device=device, runner=memory, **options)


def windows_of(driver: Driver) -> BlockGroup:
    group = driver.scheduler.kv.windows
    assert group is not None
    return group


def answered(driver: Driver, *requests: AddRequest) -> list[int]:
    """Cached tokens of each request; they run one after the other."""
    for request in requests:
        driver.add(request)
        driver.run()
    assert_complete(driver, *requests)
    return [driver.started[request.id].cached_tokens for request in requests]


def evict(group: BlockGroup, count: int) -> None:
    """Let the `count` blocks that are reused first hold other contents."""
    group.pool.release(group.pool.allocate(count))


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_a_sequence_of_any_length_keeps_a_window_and_a_chunk(device: type[FakeRunner]) -> None:
    driver = engine(device, token_budget=40)
    driver.add(make_request("long", prompt(300), max_tokens=100))
    most = {False: 0, True: 0}
    while driver.busy:
        driver.step()
        decodes = not driver.scheduler._batch.running.prefilling
        used = windows_of(driver).pool.used
        most[decodes] = max(most[decodes], used)
    assert most[False] <= 8 + 1, "a window and a chunk of 40"
    assert most[True] <= 8 + 1
    assert windows_of(driver).bound == 9
    driver.runner.close()


def test_a_decode_keeps_a_window() -> None:
    driver = engine()
    driver.add(make_request("first", prompt(100), max_tokens=60))
    for _ in range(50):
        driver.step()
    assert windows_of(driver).pool.used <= LIVE
    assert driver.scheduler.pool.used == -(-149 // SIZE)


def test_an_equal_prompt_finds_both_groups() -> None:
    driver = engine()
    text = prompt(20 * SIZE + 3)
    assert answered(driver, *(make_request(str(i), text, max_tokens=2) for i in range(3))) == [0, 20 * SIZE, 20 * SIZE]


@pytest.mark.parametrize("common", [SIZE, 4 * SIZE, 11 * SIZE + 5])
def test_prompts_part_where_they_part(common: int) -> None:
    driver = engine()
    asked = [make_request(str(i), [*prompt(common), 900 + i, *prompt(60, i)], max_tokens=3) for i in range(3)]
    assert answered(driver, *asked) == [0, common // SIZE * SIZE, common // SIZE * SIZE]


def test_prompts_of_one_batch_share_what_one_of_them_computes() -> None:
    driver = engine()
    asked = [make_request(str(i), [*prompt(6 * SIZE), 900 + i, *prompt(5, i)], max_tokens=3) for i in range(5)]
    for request in asked:
        driver.add(request)
    driver.run()
    assert_complete(driver, *asked)
    assert driver.runner.tokens_computed == 6 * SIZE + 5 * 6 + 5 * 2


@pytest.mark.parametrize("lost", range(1, 11))
def test_a_hit_ends_where_a_window_before_it_is_there(lost: int) -> None:
    """The window's blocks go in the order in which the sequence left them, and then from the end of what it had."""
    driver = engine(windows=15)
    text = prompt(10 * SIZE + 1)
    answered(driver, make_request("first", text, max_tokens=1))
    group = windows_of(driver)
    evict(group, group.pool.free + lost)
    digests = driver.scheduler.kv.cache
    roots = [digests.root(b"")]
    digests.extend_digests(roots, text)
    there = [group.pool.find(digest) is not None for digest in roots[1:]]
    expected = next(end for end in range(10, -1, -1) if all(there[group.capacity.unseen(end * SIZE) : end]))
    again = make_request("again", text, max_tokens=1)
    assert answered(driver, again) == [expected * SIZE]
    assert driver.scheduler.stats().windowless_tokens == (10 - expected) * SIZE


@pytest.mark.parametrize("length", [5, SIZE + 4, 6 * SIZE + 1])
def test_a_turn_begins_amid_a_block_that_both_groups_keep_with_the_state(length: int) -> None:
    driver = engine(slots=20)
    first = make_request("first", prompt(length), max_tokens=5)
    answered(driver, first)
    text = [*first.prompt, *driver.tokens["first", 0]]
    assert answered(driver, make_request("second", [*text, 901, 902], max_tokens=5)) == [length + 4]
    evict(windows_of(driver), windows_of(driver).pool.available)
    assert answered(driver, make_request("third", [*text, 903], max_tokens=5)) == [0]


def test_what_the_first_group_lost_is_no_hit() -> None:
    driver = engine(blocks=20)
    text = prompt(10 * SIZE + 1)
    answered(driver, make_request("first", text, max_tokens=1))
    evict(driver.scheduler.kv.blocks, driver.scheduler.pool.free + 4)
    assert answered(driver, make_request("again", text, max_tokens=1)) == [6 * SIZE]
    assert driver.scheduler.stats().windowless_tokens == 0


def test_forks_copy_the_last_block_of_both_groups_before_they_write_it() -> None:
    driver = engine(DelayedRunner)
    asked = make_request("four", prompt(3 * SIZE + 2), n=4, max_tokens=40, seed=3)
    answered(driver, asked)
    driver.runner.close()


def test_beams_part_and_meet_in_both_groups() -> None:
    driver = engine(windows=40)
    asked = make_request("beams", prompt(30), max_tokens=30, n=4, beam=BeamOptions(4))
    driver.add(asked)
    driver.run()
    found = expected_beams(asked)
    assert [driver.tokens["beams", index] for index in range(4)] == found


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_a_swap_moves_both_groups_and_brings_both_back(device: type[FakeRunner]) -> None:
    driver = engine(device, blocks=30, windows=60, hosts=60, policy=PreemptionPolicy("swap"))
    asked = [make_request(str(i), prompt(60, 100 * i), max_tokens=60) for i in range(3)]
    for request in asked:
        driver.add(request)
    most = 0
    while driver.busy:
        driver.step()
        host = windows_of(driver).host
        assert host is not None
        most = max(most, host.pool.used)
    assert_complete(driver, *asked)
    assert driver.scheduler.stats().swapped_out > 0
    assert 0 < most <= LIVE * driver.scheduler.stats().swapped_out
    assert windows_of(driver).pool.quarantined == 0
    driver.runner.close()


def test_windows_that_are_gone_come_back_from_the_host() -> None:
    """Others have taken the blocks that a swapped sequence left."""
    driver = engine(blocks=30, windows=60, hosts=60, policy=PreemptionPolicy("swap"))
    asked = [make_request(str(i), prompt(60, 100 * i), max_tokens=60) for i in range(3)]
    for request in asked:
        driver.add(request)
    while driver.busy:
        driver.step()
        if driver.scheduler.stats().swapped:
            evict(windows_of(driver), windows_of(driver).pool.available)
    assert_complete(driver, *asked)
    assert driver.scheduler.stats().swapped_out > 0


def test_a_host_without_room_for_windows_takes_nothing() -> None:
    driver = engine(blocks=30, windows=60, hosts=60, policy=PreemptionPolicy("swap"))
    windows_of(driver).host.pool.allocate(58)
    for i in range(3):
        driver.add(make_request(str(i), prompt(60, 100 * i), max_tokens=60))
    while not driver.scheduler.stats().preemptions:
        driver.pipeline.advance()
    assert driver.scheduler.kv.decisions[Decision.HOST_FULL] > 0
    assert driver.scheduler.stats().swapped_out == 0


@pytest.mark.parametrize(("length", "gives_way"), [(10, True), (30, False)])
def test_sequences_wait_or_give_way_where_windows_have_no_room(length: int, gives_way: bool) -> None:
    """Prompts shorter than a window outgrow what they found; longer ones find no room to begin in."""
    driver = engine(blocks=300, windows=3 + 3 * LIVE, policy=PreemptionPolicy("recompute"))
    asked = [make_request(str(i), prompt(length, 100 * i), max_tokens=60) for i in range(6)]
    for request in asked:
        driver.add(request)
    driver.run()
    assert_complete(driver, *asked)
    assert (driver.scheduler.stats().preemptions > 0) == gives_way


def test_a_pin_keeps_the_window_before_its_end() -> None:
    driver = engine(windows=24)
    text = prompt(8 * SIZE)
    driver.scheduler.pin(PinPrefix("system", text, b""))
    while driver.busy:
        driver.step()
    pins = windows_of(driver).pins.blocks
    assert len(pins) == 8 - windows_of(driver).capacity.unseen(8 * SIZE) == 3
    evict(windows_of(driver), windows_of(driver).pool.available)
    driver.add(request := make_request("asked", [*text, 901, 902], max_tokens=2))
    while driver.busy:
        driver.step()
    assert driver.started[request.id].cached_tokens == 8 * SIZE
    driver.scheduler.kv.pinned.unpin("system")
    assert windows_of(driver).pool.used == 0


def test_a_pin_is_refused_that_fills_half_of_the_windows() -> None:
    driver = engine(windows=6)
    driver.scheduler.pin(PinPrefix("system", prompt(8 * SIZE), b""))
    driver.step()
    assert "blocks of windows pinned would be over half of the pool's 5" in driver.failed["pin:system"].message


def test_a_step_that_fails_leaves_nothing_to_find_in_either_group() -> None:
    driver = engine()
    driver.add(make_request("first", prompt(5 * SIZE), max_tokens=2))
    plan = driver.scheduler.plan()
    assert plan is not None
    driver.scheduler.abandon(plan)
    assert windows_of(driver).pool.cached == driver.scheduler.pool.cached == 0
    driver.run()


@pytest.mark.parametrize("right", [0.6, 1.0])
@pytest.mark.parametrize("windows", [1 + LIVE, 60])
def test_drafts_take_blocks_of_both_groups_that_are_free_and_give_them_back(windows: int, right: float) -> None:
    book = AnswerBook({}, right)
    driver = engine(windows=windows, speculation=speculate(book, 12))
    asked = make_request("first", prompt(30), max_tokens=60)
    book.answers[tuple(asked.prompt)] = [expected_tokens(asked, 0)]
    driver.add(asked)
    while driver.busy:
        driver.step()
        for sequence in driver.scheduler._batch.running.decoding:
            assert len(sequence.table.blocks) == len(windows_of(driver).table_of(sequence).blocks)
    assert_complete(driver, asked)
    assert driver.scheduler.stats().accepted_tokens > 0


def test_counts_of_both_groups_add_up() -> None:
    driver = engine(hosts=10)
    driver.add(make_request("first", prompt(100), n=2, max_tokens=30))
    for _ in range(10):
        driver.step()
    stats = driver.scheduler.stats()
    windows = stats.windows()
    assert stats.total_windows == sum(windows[state] for state in ("free", "used", "cached", "quarantined")) == 59
    assert windows["used"] == windows_of(driver).pool.used > 0
    assert windows["shared"] > 0
    assert (windows["host"], windows["host_free"]) == (9, 9)
    assert Driver.create(10).scheduler.stats().windows() == {}


def test_a_swap_costs_the_bytes_of_both_groups() -> None:
    costs = CostModel(block_bytes=100, link=1000.0, prefill=1.0, latency=0.0, window_bytes=10)
    assert costs.swap_seconds(Victim(2, 0, windows=3)) == pytest.approx(2 * 0.23)


def test_a_pool_that_holds_no_window_is_refused() -> None:
    with pytest.raises(ValueError, match="do not hold a window of 20"):
        engine(windows=LIVE)
    with pytest.raises(ValueError, match="2 are the least"):
        WindowBlocks(10, 1)
