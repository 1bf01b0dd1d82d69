"""Pinned prefixes stay in the cache whatever else runs, and step aside only for a request that is alone."""

from __future__ import annotations

from engine_driver import Driver, expected_tokens, make_request

from octavo_worker.contract.messages import PinPrefix

SYSTEM = list(range(40))


def flood(driver: Driver, name: str = "flood") -> None:
    """Enough different prompts to evict whatever can be evicted."""
    for i in range(6):
        driver.add(make_request(f"{name}{i}", range(100 + 60 * i, 160 + 60 * i), max_tokens=4))
    while driver.scheduler.has_requests or driver.scheduler.has_output:
        driver.step()


def ask(driver: Driver, name: str, salt: bytes = b"") -> int:
    """Tokens of the system prompt that a new request finds."""
    driver.add(make_request(name, [*SYSTEM, 500], max_tokens=2, salt=salt))
    while driver.scheduler.has_requests:
        driver.step()
    return driver.started[name].cached_tokens


def pinned(driver: Driver, name: str = "system", tokens: list[int] = SYSTEM, salt: bytes = b"") -> None:
    driver.started.pop(f"pin:{name}", None)
    driver.scheduler.pin(PinPrefix(name, tokens, salt))
    while driver.scheduler.has_requests or driver.scheduler.has_output:
        driver.step()


def test_a_pinned_prefix_survives_what_evicts_any_other():
    driver = Driver.create(41, 4)
    assert ask(driver, "first") == 0
    flood(driver)
    assert ask(driver, "evicted") == 0
    pinned(driver)
    assert "pin:system" in driver.started
    flood(driver, "again")
    assert ask(driver, "kept") == 40
    assert driver.scheduler.stats().pinned_blocks == 10


def test_a_pin_belongs_to_its_tenant():
    driver = Driver.create(41, 4)
    pinned(driver, salt=b"tenant")
    assert ask(driver, "other") == 0
    assert ask(driver, "own", salt=b"tenant") == 40


def test_unpinned_prefixes_are_evicted_again_unless_another_name_keeps_them():
    driver = Driver.create(41, 4)
    pinned(driver)
    pinned(driver, "half", SYSTEM[:20])
    driver.scheduler.kv.pins.unpin("system")
    assert driver.scheduler.stats().pinned_blocks == 5
    flood(driver)
    assert ask(driver, "half") == 20


def test_a_name_that_is_pinned_again_moves_on():
    driver = Driver.create(41, 4)
    pinned(driver)
    pinned(driver, tokens=list(range(700, 712)))
    assert driver.scheduler.stats().pinned_blocks == 3


def test_what_a_name_kept_before_and_what_others_keep_too_does_not_count_twice():
    driver = Driver.create(31, 4)
    for tokens in (SYSTEM, SYSTEM, list(range(700, 740)), SYSTEM):
        pinned(driver, tokens=tokens)
        assert "pin:system" in driver.started
    pinned(driver, "longer", [*SYSTEM, *range(60, 80)])
    assert "pin:longer" in driver.started
    assert driver.scheduler.stats().pinned_blocks == 15
    pinned(driver, "another", list(range(800, 804)))
    assert "16 blocks pinned would be over half" in driver.failed["pin:another"].message


def test_more_than_half_of_the_pool_is_refused():
    driver = Driver.create(17, 4)
    pinned(driver)
    assert "half of the pool" in driver.failed["pin:system"].message
    assert driver.scheduler.stats().pinned_blocks == 0


def test_a_request_that_needs_the_whole_pool_gets_it_and_the_pin_comes_back():
    driver = Driver.create(21, 4)
    pinned(driver)
    whole = make_request("whole", range(600, 660), max_tokens=20)
    driver.add(whole)
    while driver.scheduler.has_requests:
        driver.step()
    assert driver.tokens["whole", 0] == expected_tokens(whole, 0)
    assert ask(driver, "computes it") == 0
    assert driver.scheduler.stats().pinned_blocks == 10
    assert ask(driver, "finds it") == 40


def test_a_failed_step_pins_nothing():
    driver = Driver.create(41, 4)
    driver.scheduler.pin(PinPrefix("system", SYSTEM))
    plan = driver.scheduler.plan()
    assert driver.scheduler.stats().pinned_blocks == 10
    driver.scheduler.abandon(plan)
    assert driver.scheduler.stats().pinned_blocks == 0
    driver.scheduler.check_integrity()
    while driver.scheduler.has_requests:
        driver.step()
    assert driver.scheduler.stats().pinned_blocks == 10
