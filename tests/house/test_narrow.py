"""Tables and screens in 80 columns: whole words, nothing cut off."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from scripted_worker import MEMORY

from octavo.cli import jobs, top
from octavo.cli.console import counted
from octavo.cli.memory_view import memory_panel
from octavo.cli.weights import products_table
from octavo.service.fleet import Snapshot, WorkerLoad
from octavo.terms.fleet import FleetStats
from octavo.terms.messages import JobStatus
from octavo.terms.models import JobInfo

LOAD = WorkerLoad(
    id="a-host.of.some-length-31698-35b629",
    model="Qwen3-0.6B",
    host="h",
    pid=1,
    running=256,
    waiting=1000,
    kv_used=0.99,
    kv_cached=0.01,
    kv_dtype="bfloat16",
    digest="",
    numerics="",
    blocks={},
    preemptions=1234,
    preemption_reasons={"swapped_out": 7},
    swapped=0,
    tokens_per_s=12345.0,
    drafted_tokens=1_000_000,
    accepted_tokens=999_999,
)

SNAPSHOT = Snapshot(
    queued={}, workers=[LOAD], memory=[], stats=FleetStats(at=0.0, queued=0, running=0, tokens_per_s=0.0)
)


def lines(renderable: Any, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    shown = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert all(len(line) <= width for line in shown)
    assert "…" not in "".join(shown)
    return shown


PRODUCT = {
    "name": "gate, up",
    "layers": 126,
    "form": "fp8 (e4m3), groups of 128, activations fp8 in groups of 128",
    "kernel": "avx512_bf16",
    "dequantises": True,
    "nbytes": 123_456_789_012,
}


def test_products_wrap_between_words() -> None:
    head, *rows = lines(products_table([PRODUCT]), 80)
    assert head.split() == ["product", "layers", "form", "size", "kernel"]
    assert " ".join(rows).split()[:2] == ["gate,", "up"]
    words = set(" ".join(rows).split())
    assert {"126", "123", "GB", "(e4m3),", "activations", "avx512_bf16,", "dense", "copy"} <= words


@pytest.mark.parametrize(("width", "is_wide"), [(80, False), (150, True)])
def test_workers_take_one_line_each(width: int, is_wide: bool) -> None:
    head, row = lines(top._worker_table(SNAPSHOT, is_wide), width)
    assert head.split()[:2] == ["worker", "model"]
    assert {"256", "1000", "99%", "12345"} <= set(row.split())
    assert ("1234" in row.split()) == is_wide


def test_jobs_take_one_line_each() -> None:
    infos = [
        JobInfo(
            id=f"g00_{number:026d}", status=JobStatus.COMPLETED, model="Qwen3-0.6B", tenant=tenant, priority="normal",
            created_at=1e9, tokens=123456,
        )
        for number, tenant in enumerate(("default", "acme"))
    ]  # fmt: skip
    assert len(lines(jobs._table(infos[:1]), 80)) == 2
    assert "tenant" not in lines(jobs._table(infos[:1]), 80)[0]
    shown = lines(jobs._table(infos), 92)
    assert len(shown) == 3
    assert "tenant" in shown[0]
    assert "acme" in shown[2]


def test_a_memory_map_says_all_of_its_legend() -> None:
    words = " ".join(" ".join(lines(memory_panel(MEMORY, 80), 80)).replace("│", " ").split())
    for said in ("free 3", "cached 1", "120 restored, 40 recomputed", "5 swapped out"):
        assert said in words


def test_nothing_preempted_is_no_person() -> None:
    memory = MEMORY.model_copy(update={"preemptions": {}})
    assert "preempted: nothing" in "\n".join(lines(memory_panel(memory, 80), 80))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("metadata", {"who": "\x1b[2Jme"}, "who: \\x1b[2Jme"),
        ("usage", {"prompt_tokens": 3, "cached_tokens": 0}, "prompt_tokens: 3, cached_tokens: 0"),
        ("tokens", 4, "4"),
    ],
)
def test_a_job_is_shown_in_words(name: str, value: Any, shown: str) -> None:
    assert jobs._shown(name, value) == shown
    assert jobs._shown("created_at", 1e9).startswith("2001-09-0")


def test_counts_have_their_number() -> None:
    assert [counted(number, "worker") for number in (0, 1, 2000)] == ["0 workers", "1 worker", "2,000 workers"]
