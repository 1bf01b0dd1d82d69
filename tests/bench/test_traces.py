"""Traces are read, cut to a context and given tokens by stated rules."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.bench.replay import arrivals_of
from octavo_worker.bench.traces import TRACE_BLOCK, TracedRequest, clip, read_trace, work_of

ROWS = [
    {"arrival_s": 0, "input_tokens": 1030, "output_tokens": 4, "hash_ids": [7, 8, 9]},
    {"arrival_s": 1.5, "input_tokens": 1200, "output_tokens": 2, "hash_ids": [7, 8, 10]},
    {"arrival_s": 3, "input_tokens": 5, "output_tokens": 9, "hash_ids": [11]},
]


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "blocks.dev.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in ROWS)
    return path


def test_both_formats_say_the_same(jsonl: Path, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,1030,4\n1.5,1200,2\n3,5,9\n")
    lengths = [(r.at, r.prompt, r.output) for r in read_trace(path)]
    assert (
        lengths == [(r.at, r.prompt, r.output) for r in read_trace(jsonl)] == [(0, 1030, 4), (1.5, 1200, 2), (3, 5, 9)]
    )
    assert read_trace(jsonl)[1].blocks == (7, 8, 10)


def test_a_part_of_a_trace(jsonl: Path) -> None:
    assert len(read_trace(jsonl, requests=2)) == 2
    assert [r.at for r in read_trace(jsonl, seconds=3)] == [0, 1.5]
    assert [r.at for r in read_trace(jsonl, requests=1, seconds=3)] == [0]
    assert [r.at for r in read_trace(jsonl, start=1.5)] == [1.5, 3]
    assert [r.at for r in read_trace(jsonl, seconds=1.5, start=1.0)] == [1.5]


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"notes\.csv is not a trace of arrival_s"):
        read_trace(path)


def test_equal_blocks_are_equal_tokens_and_nothing_else_is(jsonl: Path) -> None:
    first, second, third = (work.prompt for work in work_of(read_trace(jsonl), 1000))
    shared = 2 * TRACE_BLOCK
    assert first[:shared] == second[:shared]
    assert first[shared] != second[shared] or first[shared + 1] != second[shared + 1]
    assert [len(first), len(second), len(third)] == [1030, 1200, 5]
    assert max(first) < 1000


def test_prompts_without_blocks_are_all_different() -> None:
    prompts = [work.prompt for work in work_of([TracedRequest(0, 64, 1)] * 3, 1000)]
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert prompts == [work.prompt for work in work_of([TracedRequest(0, 64, 1)] * 3, 1000)]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), min_size=1, max_size=8),
    context=st.integers(2, 3000),
)
def test_what_is_clipped_fits_and_keeps_its_beginning(lengths: list[tuple[int, int]], context: int) -> None:
    trace = [TracedRequest(0, prompt, output, tuple(range(-(-prompt // TRACE_BLOCK)))) for prompt, output in lengths]
    fitting, clipped = clip(trace, context)
    for was, now in zip(trace, fitting, strict=True):
        assert now.prompt + now.output <= context
        assert 1 <= now.prompt <= max(1, was.prompt)
        assert 1 <= now.output <= max(1, was.output)
        if was.prompt + was.output <= context and was.output <= context // 2 and min(was.prompt, was.output) > 0:
            assert now == was
        assert now.blocks == was.blocks[: len(now.blocks)]
    assert clipped.kept_prompt_tokens == sum(now.prompt for now in fitting)


def test_arrivals_start_at_zero_and_follow_the_speed(jsonl: Path) -> None:
    assert arrivals_of(read_trace(jsonl)[1:], speed=3.0) == [0.0, 0.5]


def test_a_trace_without_times_cannot_be_replayed() -> None:
    with pytest.raises(ValueError, match="no arrival times"):
        arrivals_of([TracedRequest(None, 1, 1)], 1.0)
    with pytest.raises(ValueError, match="not in order"):
        arrivals_of([TracedRequest(2, 1, 1), TracedRequest(1, 1, 1)], 1.0)
