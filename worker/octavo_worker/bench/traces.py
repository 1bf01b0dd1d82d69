"""Request traces: when requests arrived, how long they were, and which of their blocks were the same.

Two formats, plain or `.gz`: CSV with the columns `arrival_s,input_tokens,output_tokens`, and JSON lines with these keys
and, where the source has it, `hash_ids`, one for every 512 tokens of the prompt (Mooncake, FAST '25): prompts with
equal leading ids had equal leading text. The text itself is in neither.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import Any, TextIO

from octavo_worker.bench.workloads import Work

TRACE_BLOCK = 512
"""Tokens that one id of a trace stands for; those of the last may be fewer."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """`at` in seconds since the start of the trace, None where the source has no times; lengths in tokens."""

    at: float | None
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Clipped:
    """Requests that were cut to fit a context, and their prompts' tokens before and after."""

    requests: int
    prompt_tokens: int
    kept_prompt_tokens: int


def read_trace(
    path: Path, requests: int | None = None, seconds: float | None = None, *, start: float = 0.0
) -> list[TracedRequest]:
    """A trace from second `start` on: at most that many requests, and those of the next `seconds`.

    Raises ValueError for a file that is not of this format.
    """
    with _open(path) as file:
        try:
            found = (_request(row) for row in _rows(path, file))
            later = dropwhile(lambda request: (request.at or 0) < start, found)
            within = takewhile(lambda request: seconds is None or (request.at or 0) < start + seconds, later)
            return list(islice(within, requests))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a trace of arrival_s, input_tokens, output_tokens: {error!r}") from error


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield file


def _rows(path: Path, file: TextIO) -> Iterator[Mapping[str, Any]]:
    if ".jsonl" in path.suffixes:
        return (json.loads(line) for line in file)
    return csv.DictReader(file)


def _request(row: Mapping[str, Any]) -> TracedRequest:
    at = row["arrival_s"]
    return TracedRequest(
        at=None if at in (None, "") else float(at),
        prompt=int(row["input_tokens"]),
        output=int(row["output_tokens"] or 0),
        blocks=tuple(row.get("hash_ids", ())),
    )


def clip(trace: list[TracedRequest], context: int) -> tuple[list[TracedRequest], Clipped]:
    """Fit every request into `context` tokens: its output is cut to half of them, its prompt to what the output then
    leaves. Prompts keep their beginnings, and with them what they share. Nothing becomes shorter than one token."""
    fitting = []
    for request in trace:
        output = min(max(1, request.output), max(1, context // 2))
        prompt = min(max(1, request.prompt), context - output)
        fitting.append(TracedRequest(request.at, prompt, output, request.blocks[: -(-prompt // TRACE_BLOCK)]))
    cut = sum(now.prompt < was.prompt or now.output < was.output for was, now in zip(trace, fitting, strict=True))
    return fitting, Clipped(cut, sum(r.prompt for r in trace), sum(r.prompt for r in fitting))


def work_of(trace: list[TracedRequest], vocab_size: int) -> list[Work]:
    """Token ids for every request: those of a block follow from its id alone, those of the rest from the request's
    place in the trace. Beyond the blocks of the trace nothing is shared, except by chance."""

    @cache
    def block(number: int) -> list[int]:
        return _tokens(f"block {number}", TRACE_BLOCK, vocab_size)

    def prompt(place: int, request: TracedRequest) -> list[int]:
        tokens = [token for number in request.blocks for token in block(number)][: request.prompt]
        return tokens + _tokens(f"request {place}", request.prompt - len(tokens), vocab_size)

    return [Work(prompt(place, request), request.output) for place, request in enumerate(trace)]


def _tokens(seed: str, count: int, vocab_size: int) -> list[int]:
    words = array("I", random.Random(seed).randbytes(4 * count))
    return [word % vocab_size for word in words]
