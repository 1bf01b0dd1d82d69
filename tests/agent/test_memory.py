"""A worker describes its memory on request, and does nothing for it otherwise."""

from __future__ import annotations

import asyncio
import io

import pytest
from queue_client import Queue
from rich.console import Console
from waiting import eventually

from octavo import AsyncClient, Client
from octavo.cli.doctor import _windows
from octavo.cli.memory_view import memory_panel
from octavo.terms.errors import WorkerNotFound
from octavo.terms.stats import PREEMPTION_REASONS
from octavo_worker.memory.cost import Decision

PROMPT = tuple(range(2, 66))


def sampling(max_tokens: int, **fields: object) -> dict[str, object]:
    return {"max_tokens": max_tokens, "ignore_eos": True, **fields}


def test_the_map_agrees_with_the_counts_while_sequences_share_and_after(queue: Queue, redis_url, start_worker):
    worker = start_worker("step_seconds=0.01", num_blocks=65).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(300, n=3))
    eventually(lambda: queue.stored(job) > 10)
    with Client(redis_url) as client:
        memory = client.worker_memory(worker.id)
        assert (memory.worker, memory.model, memory.block_size, memory.kv_dtype) == (worker.id, "demo", 16, "bfloat16")
        assert memory.blocks["total"] == sum(memory.blocks[s] for s in ("free", "used", "cached", "quarantined")) == 64
        assert (memory.cells.count("s"), memory.cells.count(".")) == (memory.blocks["shared"], memory.blocks["free"])
        assert memory.sharing == ((3, 4),)
        assert max(memory.cell_references) == 3
        assert memory.tokens["prompt"] == 64
        client.cancel(job)
        eventually(lambda: client.worker_memory(worker.id).blocks["used"] == 0)
        after = client.worker_memory(worker.id)
        assert after.cells.count("c") == after.blocks["cached"] > 0
        assert after.sharing == ()


def test_every_block_has_its_job_on_the_map(queue: Queue, redis_url, start_worker):
    worker = start_worker("step_seconds=0.01", num_blocks=1400).wait_ready()
    jobs = [queue.submit((*PROMPT, i), sampling=sampling(300)) for i in range(2, 5)]
    eventually(lambda: all(queue.stored(job) > 10 for job in jobs))

    async def ask():
        async with AsyncClient(redis_url) as client:
            return await client.worker_map(worker.id)

    found = asyncio.run(ask())
    assert (found.device, found.host, set(found.owners)) == (1399, 0, set(jobs))
    codes, lengths = memoryview(found.codes).cast("H"), memoryview(found.lengths).cast("I")
    used = sum(length for code, length in zip(codes, lengths, strict=True) if code >= 16)
    assert used >= 4 + 3
    assert any(code & 0x8000 for code in codes), "the common prompt is shared"


def test_the_host_and_the_reasons_of_preemptions(queue: Queue, redis_url, start_worker):
    worker = start_worker("step_seconds=0.002", num_blocks=34, swap_memory=1.0, preemption="swap").wait_ready()
    jobs = [queue.submit((i, 30 + i), sampling=sampling(200)) for i in range(12)]
    with Client(redis_url) as client:
        eventually(lambda: "u" in client.worker_memory(worker.id).host_cells)
        for job in jobs:
            queue.wait(job)
        memory = client.worker_memory(worker.id)
        assert memory.preemptions["swapped_out"] > 0
        assert memory.tokens["restored"] > 0
        assert memory.host["used"] == 0
        assert set(memory.host_cells) == {"."}


def test_slots_for_states_are_shown_by_use(queue: Queue, redis_url, start_worker):
    worker = start_worker("step_seconds=0.01,state_slots=12", num_blocks=100).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(300, n=3))
    eventually(lambda: queue.stored(job) > 10)
    with Client(redis_url) as client:
        memory = client.worker_memory(worker.id)
        states = memory.states
        assert states["total"] == sum(states[s] for s in ("free", "used", "cached", "quarantined")) == 11
        assert (states["used"], len(memory.state_cells)) == (3, 11)
        assert memory.state_cells.count("u") == 3
        shown = Console(width=90, record=True, file=io.StringIO())
        shown.print(memory_panel(memory, 90))
        assert "11 slots for states" in shown.export_text()
        (info,) = client.workers()
        assert info.stats.max_running == 10, "more sequences than there are slots"
        client.cancel(job)
        eventually(lambda: client.worker_memory(worker.id).states["used"] == 0)
        assert client.worker_memory(worker.id).states["cached"] > 0


def test_nobody_answers_for_a_worker_that_is_not_there(redis_url):
    with Client(redis_url) as client, pytest.raises(WorkerNotFound, match="octavo workers"):
        client.worker_memory("nobody")


def test_every_way_that_a_preemption_goes_is_counted():
    assert list(PREEMPTION_REASONS) == [decision.value for decision in Decision]


def test_blocks_of_windows_are_shown_beside_the_others(queue: Queue, redis_url, start_worker):
    worker = start_worker("step_seconds=0.01,window_blocks=21,layer_window=40", num_blocks=100).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(300, n=3))
    eventually(lambda: queue.stored(job) > 150)
    with Client(redis_url) as client:
        memory = client.worker_memory(worker.id)
        windows = memory.windows
        assert windows["total"] == sum(windows[s] for s in ("free", "used", "cached", "quarantined")) == 20
        assert 0 < windows["used"] < memory.blocks["used"]
        assert len(memory.window_cells) == len(memory.window_references) == 20
        shown = Console(width=90, record=True, file=io.StringIO())
        shown.print(memory_panel(memory, 90))
        assert "20 blocks of layers with a window" in shown.export_text()
        (info,) = client.workers()
        assert "20 of layers with a window: " in _windows(info).found
