"""Claims of a worker that has another room for each class: what it gets, and which bells tell others of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.queue.protocol import Claims, ClassRoom

NONE = ClassRoom(0, 0)
LONG = tuple(range(100))


class Fleet:
    """Jobs by class, and claims of workers with a room for each."""

    def __init__(self, world: Any, request_of: Any) -> None:
        self.world, self._request_of = world, request_of

    def add(self, priority: str, *, tenant: str = "acme", prompt: Any = "hello") -> str:
        return str(self.world.enqueue(self._request_of(prompt, priority=priority), tenant=tenant))

    def claim(self, *jobs: int, rooms: tuple[ClassRoom, ...] = (), digest: str = "") -> Claims:
        """With so many jobs of room for high, normal and batch, or with `rooms`."""
        rooms = rooms or tuple(ClassRoom(count, 9999) for count in jobs)
        return self.world.run(self.call(rooms, digest))

    def call(self, rooms: tuple[ClassRoom, ...], digest: str = "") -> Any:
        most = {"max_jobs": rooms[0].jobs, "max_tokens": rooms[0].tokens}
        return self.world.cell.claim("toy", "w", **most, lease_ms=60_000, idle=False, digest=digest, rooms=rooms)

    def got(self, *jobs: int, **options: Any) -> list[str]:
        return [claim.job_id for claim in self.claim(*jobs, **options).jobs]

    def give_back(self, *job_ids: str, tokens: int = 0) -> None:
        """Claimed and released again, with so many tokens."""
        for claim in self.claim(99, 99, 99, digest="d").jobs:
            if claim.job_id in job_ids and tokens:
                self.world.append(claim, 0, range(tokens))
            self.world.run(self.world.cell.release([(claim.job_id, claim.token)]))

    def rung(self) -> set[str]:
        """The bells that ring, without the model's name. Answers them."""
        names = {name.decode() for name in self.world.redis.scan_iter("{c00}:bell:toy*")}
        if names:
            self.world.redis.delete(*names)
        return {name.removeprefix("{c00}:bell:toy").removeprefix(":=") for name in names}


@pytest.fixture
def fleet(world: Any, request_of: Any) -> Fleet:
    return Fleet(world, request_of)


# rooms


def test_a_worker_full_of_a_class_gets_what_is_above_it(fleet: Fleet) -> None:
    low, high, normal = fleet.add("batch"), fleet.add("high"), fleet.add("normal")
    assert fleet.got(1, 0, 0) == [high]
    assert fleet.got(2, 2, 0) == [normal]
    assert fleet.got(2, 2, 0) == []
    assert fleet.got(1, 1, 1) == [low]


def test_what_is_taken_of_a_class_is_taken_from_those_below(fleet: Fleet) -> None:
    order = [fleet.add(priority) for priority in ("high", "normal", "normal", "batch")]
    assert fleet.got(3, 2, 2) == order[:2]
    assert fleet.got(2, 1, 1) == [order[2]]
    more = [fleet.add("batch"), fleet.add("high")]
    assert fleet.got(9, 1, 1) == [more[1]]
    assert fleet.got(9, 2, 1) == [order[3]]


def test_lower_classes_leave_the_room_of_higher_ones_as_it_is(fleet: Fleet) -> None:
    low = [fleet.add("batch") for _ in range(3)]
    assert fleet.got(3, 3, 3) == low
    high = fleet.add("high")
    assert fleet.got(3, 3, 0) == [high]


def test_a_prompt_too_long_for_its_class_holds_up_those_below_only(fleet: Fleet) -> None:
    fleet.add("normal", prompt=LONG)
    fleet.add("batch")
    rooms = (ClassRoom(9, 9999), ClassRoom(9, 99), ClassRoom(9, 99))
    claims = fleet.claim(rooms=rooms)
    assert claims.jobs == ()
    assert claims.misfit
    high = fleet.add("high")
    assert fleet.got(rooms=rooms) == [high]


def test_where_nothing_stays_the_first_job_may_have_any_size(fleet: Fleet) -> None:
    first = fleet.add("high", prompt=LONG)
    fleet.add("high", prompt=LONG)
    rooms = (ClassRoom(9, 99, whole=True), ClassRoom(9, 99, whole=True), NONE)
    assert fleet.got(rooms=rooms) == [first]


# aging


def pass_over(fleet: Fleet, count: int) -> None:
    for _ in range(count):
        high = fleet.add("high")
        assert fleet.got(1, 1, 1) == [high]


def test_a_class_that_was_passed_over_goes_next_as_of_the_class_before_it(fleet: Fleet) -> None:
    low = fleet.add("batch")
    pass_over(fleet, 32)
    fleet.add("high")
    (claim,) = fleet.claim(1, 1, 1).jobs
    assert (claim.job_id, claim.priority, claim.risen) == (low, "batch", "high")


def test_a_class_without_room_is_not_passed_over(fleet: Fleet) -> None:
    fleet.add("batch")
    for _ in range(40):
        high = fleet.add("high")
        assert fleet.got(1, 1, 0) == [high]
    high = fleet.add("high")
    assert fleet.got(1, 1, 1) == [high]


def test_what_rose_is_taken_from_the_room_of_the_class_that_it_rose_to(fleet: Fleet) -> None:
    fleet.add("batch")
    pass_over(fleet, 32)
    fleet.add("high")
    assert len(fleet.got(1, 1, 1)) == 1


def test_a_large_job_that_goes_next_keeps_what_is_left_but_not_what_gives_way(fleet: Fleet) -> None:
    low = fleet.add("batch", prompt=LONG)
    pass_over(fleet, 32)
    high = [fleet.add("high") for _ in range(4)]
    rooms = (ClassRoom(5, 9999), ClassRoom(5, 9999), ClassRoom(3, 99))
    assert fleet.got(rooms=rooms) == high[:2], "3 of 5 are kept"
    rooms = (ClassRoom(3, 99), ClassRoom(3, 99), ClassRoom(3, 99))
    assert fleet.got(rooms=rooms) == [], "where nothing gives way all is kept"
    assert fleet.got(3, 3, 3)[0] == low


def test_a_repeated_claim_says_again_what_rose(fleet: Fleet) -> None:
    fleet.add("batch")
    pass_over(fleet, 32)
    fleet.add("high")
    call = fleet.call((ClassRoom(1, 999),) * 3)
    first, again = fleet.world.run(call), fleet.world.run(call)
    assert [claim.risen for claim in (*first.jobs, *again.jobs)] == ["high", "high"]


# jobs that come back


@pytest.mark.parametrize("tokens", [0, 2])
def test_jobs_that_come_back_go_first_in_their_class_only(fleet: Fleet, tokens: int) -> None:
    low, normal = fleet.add("batch"), fleet.add("normal")
    fleet.give_back(low, normal, tokens=tokens)
    fresh = [fleet.add(priority) for priority in ("batch", "normal", "high")]
    assert fleet.got(1, 1, 0, digest="d") == [fresh[2]]
    assert fleet.got(9, 9, 9, digest="d") == [normal, fresh[1], low, fresh[0]]


def test_a_takeover_of_a_class_without_room_leaves_it_to_others(fleet: Fleet) -> None:
    low = [fleet.add("batch") for _ in range(3)]
    fleet.give_back(*low, tokens=2)
    assert fleet.got(9, 9, 0, digest="d") == []
    high = fleet.add("high")
    assert fleet.got(9, 9, 0, digest="d") == [high]
    assert sorted(fleet.got(9, 9, 9, digest="d")) == sorted(low)


@pytest.mark.parametrize("lane", ["resume", "resume:=d"])
def test_jobs_that_an_earlier_version_gave_back_are_handed_out(fleet: Fleet, lane: str) -> None:
    """Their place in the lane is the time alone."""
    high, low = fleet.add("high"), fleet.add("batch")
    fleet.give_back(high, low, tokens=2 if "=" in lane else 0)
    name = f"{{c00}}:b:{lane}:toy"
    now = fleet.world.redis.time()[0] * 1000
    assert fleet.world.redis.zrem(name, high) == 1
    fleet.world.redis.zadd(name, {high: now})
    assert fleet.got(9, 9, 9, digest="d") == [low, high]


def test_an_earlier_version_finds_the_jobs_of_this_one(fleet: Fleet) -> None:
    """It takes what comes first in the lane."""
    low, high = fleet.add("batch"), fleet.add("high")
    fleet.give_back(low, high)
    assert fleet.world.redis.zrange("{c00}:b:resume:toy", 0, -1) == [high.encode(), low.encode()]


# tenants


def guest_rooms(count: int, *sated: str, tokens: int = 9999) -> tuple[ClassRoom, ...]:
    return (ClassRoom(9, 9999), ClassRoom(0, 0, guests=count, guest_tokens=tokens, sated=sated), NONE)


def test_a_tenant_with_less_gets_a_job_beyond_the_room(fleet: Fleet) -> None:
    fleet.add("normal", tenant="full")
    others = [fleet.add("normal", tenant=tenant) for tenant in ("b", "c")]
    fleet.add("normal", tenant="b")
    assert sorted(fleet.got(rooms=guest_rooms(9, "full"))) == sorted(others), "one each"
    assert fleet.got(rooms=guest_rooms(9, "full", "b", "c")) == []


def test_no_more_guests_come_than_others_give_way_to(fleet: Fleet) -> None:
    for tenant in ("a", "b", "c"):
        fleet.add("normal", tenant=tenant)
    assert len(fleet.got(rooms=guest_rooms(2, "full"))) == 2


def test_a_guest_that_is_too_large_waits(fleet: Fleet) -> None:
    fleet.add("normal", tenant="b", prompt=LONG)
    assert fleet.got(rooms=guest_rooms(9, "full", tokens=50)) == []
    high = fleet.add("high")
    assert fleet.got(rooms=guest_rooms(9, "full", tokens=50)) == [high]


def test_a_guest_pays_for_its_job_and_turns_no_clock(fleet: Fleet) -> None:
    fleet.add("normal", tenant="full")
    fleet.got(1, 1, 1)
    fleet.add("normal", tenant="full")
    for _ in range(2):
        fleet.add("normal", tenant="b")
    clock = fleet.world.redis.get("{c00}:V:normal:toy")
    before = fleet.world.redis.zscore("{c00}:v:normal:toy", "b")
    fleet.got(rooms=guest_rooms(1, "full"))
    assert fleet.world.redis.zscore("{c00}:v:normal:toy", "b") > before
    assert fleet.world.redis.get("{c00}:V:normal:toy") == clock


def test_a_guest_may_be_a_job_that_comes_back(fleet: Fleet) -> None:
    other = fleet.add("normal", tenant="b")
    fleet.give_back(other)
    assert fleet.got(rooms=guest_rooms(9, "full")) == [other]


def test_a_job_that_comes_back_and_may_be_no_guest_holds_up_no_other(fleet: Fleet) -> None:
    mine = fleet.add("normal", tenant="full")
    fleet.give_back(mine)
    fresh = fleet.add("normal", tenant="c")
    assert fleet.got(rooms=guest_rooms(9, "full")) == [fresh]


# bells


def test_work_without_room_here_rings_for_those_that_have_room(fleet: Fleet) -> None:
    fleet.add("batch")
    assert fleet.rung() == {""}
    assert fleet.got(9, 9, 0) == []
    assert fleet.rung() == {"batch"}
    fleet.add("normal")
    assert fleet.rung() == {""}
    assert fleet.got(9, 0, 0) == []
    assert fleet.rung() == {"normal", "batch"}


def test_work_that_only_equal_workers_may_do_rings_for_these(fleet: Fleet) -> None:
    low = fleet.add("batch")
    fleet.give_back(low, tokens=2)
    assert fleet.rung() == {"", "d"}
    assert fleet.got(9, 9, 0, digest="d") == []
    assert fleet.rung() == {"d:batch"}
    assert fleet.got(9, 9, 9, digest="d") == [low]


def test_a_worker_that_fills_up_wakes_another_and_not_itself(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.add("batch")
    fleet.rung()
    fleet.got(2, 2, 2)
    assert fleet.rung() == {"batch"}, "it hears the bell of all, but for the class batch it has no room left"


def test_a_job_that_does_not_fit_does_not_ring_in_circles(fleet: Fleet) -> None:
    fleet.add("normal", prompt=LONG)
    rooms = (ClassRoom(9, 9999), ClassRoom(9, 99), ClassRoom(9, 99))
    rings = 0
    for _ in range(50):
        rings += bool(fleet.rung())
        assert fleet.got(rooms=rooms) == []
    assert 1 <= rings <= 4


def test_a_worker_with_room_for_nothing_leaves_the_bell_of_all(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.add("high")
    fleet.rung()
    assert len(fleet.got(1, 0, 0)) == 1
    assert fleet.rung() == {""}
