"""A worker's claims follow what its engine can take on, of each class and of each tenant."""

from __future__ import annotations

import msgspec

from octavo.queue.keys import Keys
from octavo.queue.protocol import Claim, ClassRoom
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo_worker.agent.claims.memory import GROWTH_BLOCKS, Memory, Need
from octavo_worker.agent.claims.room import Room, room_for
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.prompts.answer_form import EncodedPrompt
from octavo_worker.contract.messages import (
    HIGH,
    BeamProgress,
    EngineStats,
    Ready,
    RequestPromoted,
    RequestResumed,
    RequestStarted,
    TokenOutput,
    WindowLimits,
)

BLOCK = 16
ROWS = 16


def active(
    prompt: int,
    *,
    priority: str = "normal",
    tenant: str = "t",
    running: bool = True,
    output: int = 0,
    **sampling: object,
) -> ActiveJob:
    """A job that runs, or is on its way into the engine."""
    request = JobRequest(model="m", prompt=(1,), sampling=SamplingParams(**sampling))
    claim = Claim(Keys().new_job_id(), "token", 1, tenant, priority, request, 1, None, 0, False)
    job = ActiveJob(claim)
    job.begin(EncodedPrompt([0] * prompt), tokenizer=None, token_bytes=lambda token: b"")
    if running:
        job.started(RequestStarted(job.request_id, 0))
    for sequence in job.sequences:
        for _ in range(output):
            job.accept(TokenOutput(job.request_id, sequence.index, 5))
    return job


def limits_of(*, enough: int = 100, blocks: int = 101, gives_way: bool = True) -> Ready:
    return Ready(
        max_model_len=40_000,
        vocab_size=997,
        num_blocks=blocks,
        block_size=BLOCK,
        max_running=ROWS,
        kv_dtype="float32",
        enough_blocks=enough,
        load_seconds=0.0,
        gives_way=gives_way,
    )


def rooms(*jobs: ActiveJob, free: int = 100, used: int = 0, **limits: int) -> Room | None:
    return room_for(jobs, limits_of(**limits), EngineStats(free_blocks=free, used_blocks=used))


def room(*prompts: int, free: int, cached: int = 0, running: bool = False, **limits: int) -> ClassRoom | None:
    """For more of the class of jobs whose prompts have so many tokens."""
    jobs = [active(tokens, running=running) for tokens in prompts]
    found = room_for(jobs, limits_of(**limits), EngineStats(free_blocks=free, cached_blocks=cached))
    return None if found is None or found.classes[1].jobs <= 0 else found.classes[1]


def jobs_of(found: Room | None) -> list[int]:
    assert found is not None
    return [part.jobs for part in found.classes]


def test_a_prompt_on_the_way_takes_its_blocks():
    before, after = room(160, free=100, running=True), room(160, free=100)
    assert before is not None
    assert after is not None
    assert before.tokens - after.tokens == 160


def test_a_prompt_on_the_way_takes_no_more_than_it_will_hold():
    assert room(16_000, free=100) is None
    behind = room(16_000, free=100, enough=50)
    assert behind is not None
    assert behind.tokens == (100 - 50 - GROWTH_BLOCKS) * BLOCK


def test_a_prompt_of_any_length_may_be_claimed_where_it_can_begin():
    some = room(16, free=60, enough=50)
    assert some is not None
    assert some.tokens == 40_000
    few = room(16, free=40, enough=50)
    assert few is not None
    assert few.tokens < 40 * BLOCK


def test_cached_blocks_are_as_good_as_free_ones():
    assert room(16, free=10, cached=50, running=True) == room(16, free=60, running=True)


def test_no_more_is_claimed_than_the_batch_has_places():
    left = room(*[16] * 14, free=100, running=True)
    assert left is not None
    assert left.jobs == 2
    assert room(*[16] * 16, free=100, running=True) is None


def test_an_idle_worker_takes_a_job_however_small_its_pool():
    found = rooms(free=3, blocks=4)
    assert found == Room((ClassRoom(1, 4 * BLOCK, whole=True),) * 3, idle=True)


# classes


def test_rows_of_a_lower_class_are_room_for_higher_ones():
    found = rooms(*[active(16, priority="batch") for _ in range(ROWS)], *[active(16, priority="high")] * 3)
    assert jobs_of(found) == [ROWS - 3, ROWS - 3, 0]


def test_blocks_of_a_lower_class_are_room_for_higher_ones():
    low = [active(16 * BLOCK, priority="batch") for _ in range(5)]
    high = active(15 * BLOCK, priority="high")
    found = rooms(*low, high, free=5, used=95)
    assert found is not None
    assert found.classes[0].tokens == found.classes[1].tokens == (5 + 80 - GROWTH_BLOCKS) * BLOCK
    assert found.classes[2] == ClassRoom(0, 0, guests=4, guest_tokens=found.classes[2].guest_tokens, sated=("t",))


def test_what_is_shared_or_pinned_frees_nothing():
    low = [active(16 * BLOCK, priority="batch") for _ in range(5)]
    stats = EngineStats(free_blocks=5, used_blocks=30, pinned_blocks=10)
    found = room_for([*low, active(BLOCK, priority="high")], limits_of(), stats)
    assert found is not None
    assert found.classes[0].tokens == (5 + 20 - GROWTH_BLOCKS) * BLOCK


def test_where_only_lower_classes_run_the_first_job_may_have_any_size():
    found = rooms(active(16, priority="batch"), free=2, used=98)
    assert found is not None
    assert [part.whole for part in found.classes] == [True, True, False]
    assert not found.idle


def test_a_preempted_job_has_no_memory_and_needs_it_again():
    low = active(16 * BLOCK, priority="batch", output=BLOCK)
    high = active(BLOCK, priority="high")
    before = rooms(low, high, free=60, used=18)
    low.preempted()
    gone = rooms(low, high, free=77, used=1)
    assert before is not None
    assert gone is not None
    assert gone.classes[0].tokens == before.classes[0].tokens
    assert gone.classes[2].tokens == before.classes[2].tokens
    low.resumed(RequestResumed(low.request_id, 0, 0))
    assert rooms(low, high, free=60, used=18) == before


def test_samples_share_their_prompt_and_beams_count_by_their_progress():
    samples = active(4 * BLOCK, n=3, output=BLOCK + 1)
    assert samples.blocks(BLOCK, 100) == 4 + 3 * 2
    assert samples.blocks(BLOCK, 5) == 4 + 3 * 2
    beams = active(4 * BLOCK, n=2, beam_width=4)
    assert beams.blocks(BLOCK, 100) == 4
    beams.progressed(BeamProgress(beams.request_id, [0] * 30, 0.0, 0))
    assert beams.blocks(BLOCK, 100) == 4 + 4 * 2
    assert active(100 * BLOCK, output=1).blocks(BLOCK, 7) == 7


def test_a_job_that_rose_counts_where_it_rose_to():
    low = [active(16, priority="batch") for _ in range(ROWS)]
    low[0].promoted(RequestPromoted(low[0].request_id, HIGH))
    assert jobs_of(rooms(*low)) == [ROWS - 1, ROWS - 1, 0]


def test_where_nothing_gives_way_there_is_one_room_for_all():
    low = [active(16, priority="batch") for _ in range(ROWS - 1)]
    found = rooms(*low, gives_way=False)
    assert jobs_of(found) == [1]
    assert rooms(*low, active(16), gives_way=False) is None


# tenants


def full_of(**rows: int) -> list[ActiveJob]:
    """Jobs of tenants that fill all rows."""
    assert sum(rows.values()) == ROWS
    return [active(BLOCK, tenant=tenant) for tenant, count in rows.items() for _ in range(count)]


def sated(*jobs: ActiveJob) -> tuple[int, tuple[str, ...]]:
    found = rooms(*jobs, free=50, used=50)
    assert found is not None
    assert found.classes[1].jobs == 0
    return found.classes[1].guests, found.classes[1].sated


def test_a_tenant_that_runs_more_has_guests():
    assert sated(*full_of(a=16)) == (15, ("a",))
    assert sated(*full_of(a=10, b=6)) == (9, ("a",))
    assert sated(*full_of(a=9, b=7)) == (8, ("a",))
    assert sated(*full_of(a=8, b=8)) == (7, ("a", "b"))


def test_a_tenant_with_a_single_job_gives_nothing():
    found = rooms(*full_of(**{f"t{i}": 1 for i in range(ROWS)}))
    assert found is not None
    assert found.classes[1].is_none


def test_a_guest_comes_alone():
    jobs = [*full_of(a=12, b=4), active(BLOCK, tenant="b", running=False)]
    assert sated(*jobs) == (11, ("a", "b"))


def test_where_jobs_gave_way_each_tenant_has_one_ready():
    jobs = full_of(a=8, b=8)
    gone = active(BLOCK, tenant="a")
    gone.preempted()
    assert sated(*jobs, gone) == (7, ("a",))
    assert sated(*full_of(a=16), gone) == (15, ("a",))


def test_a_guest_has_the_memory_of_those_that_run_most():
    jobs = [active(10 * BLOCK, tenant="a") for _ in range(6)] + [active(30 * BLOCK, tenant="b")]
    found = rooms(*jobs, free=2, used=90)
    assert found is not None
    mine = found.classes[1]
    assert (mine.jobs, mine.sated) == (0, ("a",))
    assert mine.guest_tokens == (2 - 7 * GROWTH_BLOCKS + 50) * BLOCK


def test_a_sequence_takes_a_slot_for_its_state():
    """Pins hold slots, which no sequence can have."""
    limits, jobs = limits_of(enough=4, blocks=1001), [active(20) for _ in range(3)]
    plenty = EngineStats(running=3, used_blocks=12, free_blocks=988)
    few = EngineStats(running=3, used_blocks=12, free_blocks=988, used_states=6, free_states=3, pinned_states=2)
    assert room_for(jobs, limits, plenty).of(1).jobs == ROWS - 3
    assert room_for(jobs, limits, few).of(1).jobs == 9 - 2 - 1 - 3


# windows


def test_a_job_takes_windows_as_long_as_it_grows_into_one() -> None:
    """A long prompt has one and a block at times; a short one grows until it has as many."""
    memory = Memory(msgspec.structs.replace(limits_of(), windows=WindowLimits(50, 4, 10)))
    assert (memory.of(active(160)), memory.growth(active(160))) == (Need(10, 4), Need(4, 1))
    assert (memory.of(active(40)), memory.growth(active(40))) == (Need(3, 3), Need(4, 2))
    samples = active(40, n=2)
    assert (memory.of(samples), memory.growth(samples)) == (Need(4, 4), Need(8, 6))
