"""The order in which lines are submitted: what shares a beginning stands together, and any owner finds the same one."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from pathlib import Path

import pytest
from clerks import CHAT, RESPONSES, TEXT, encoded, line

from octavo.dialects.openai.batch.beginnings import LONGEST, beginning
from octavo.service.clerk.input_file import InputFile
from octavo.service.clerk.order import RUN_LINES, Order
from octavo.service.storage import open_storage
from octavo.service.storage.interface import in_pieces


def in_order(beginnings: list[bytes]) -> list[int]:
    order = Order()
    for one in beginnings:
        order.add(one)
    return order.numbers()


def shuffled(prompts: int, lines: int) -> list[str]:
    texts = [f"{prompt:03d}" * 300 + f" question {number}" for prompt in range(prompts) for number in range(lines)]
    random.Random(7).shuffle(texts)
    return texts


@pytest.mark.parametrize("url", [CHAT, TEXT, RESPONSES])
def test_lines_of_one_prompt_stand_together_and_else_as_in_the_file(url: str) -> None:
    texts = shuffled(9, 11)
    numbers = in_order([beginning(encoded(line("a", text, url=url))) for text in texts])
    assert sorted(numbers) == list(range(99))
    prompts = [texts[number][:3] for number in numbers]
    assert prompts[::11] == list(dict.fromkeys(text[:3] for text in texts))
    assert all(prompts[start : start + 11] == [prompts[start]] * 11 for start in range(0, 99, 11))
    assert all(numbers[start : start + 11] == sorted(numbers[start : start + 11]) for start in range(0, 99, 11))


def test_the_system_prompt_counts_before_the_first_message_of_the_user() -> None:
    def chat(system: str, user: str) -> bytes:
        turns = [{"role": "system", "content": system * 400}, {"role": "user", "content": user * 400}]
        return beginning(encoded(line("a", url=CHAT, messages=[*turns, {"role": "user", "content": "now"}])))

    asked = [("a", "x"), ("b", "x"), ("a", "y"), ("b", "y"), ("a", "x"), ("b", "x")]
    assert in_order([chat(*one) for one in asked]) == [0, 4, 2, 1, 5, 3]


def test_a_longer_beginning_in_common_is_nearer() -> None:
    base = b"a" * 256
    lines = [base + b"b" * 256 + b"1", base + b"c" * 256 + b"2", base + b"b" * 256 + b"3", b"short", b"short"]
    assert in_order(lines) == [0, 2, 1, 3, 4]
    assert in_order([b"x" * 255 + b"1", b"y", b"x" * 255 + b"1"]) == [0, 2, 1]
    assert in_order([b"x" * 255, b"y", b"x" * 255]) == [0, 1, 2]  # too short to be worth it


def test_tools_and_instructions_count_and_a_line_that_is_none_does_not() -> None:
    body = {"model": "m", "input": "b", "instructions": "a", "tools": [1]}
    assert beginning(json.dumps({"body": body}).encode()) == b'[1]"a""b"'
    assert [beginning(text) for text in (b"", b"[]", b"{}", b'{"body": 1}', b'{"body": {"prompt": "\xff"')] == [b""] * 5
    assert len(beginning(encoded(line("a", "x" * 100_000)))) == LONGEST


def test_the_order_of_a_file_is_that_of_all_processes_and_versions() -> None:
    """A batch that runs counts places in it: where this changes, lines of batches that another version has begun run
    twice, or never."""
    beginnings = [beginning(encoded(line("a", text))) for text in shuffled(40, 50)]
    found = hashlib.sha256(json.dumps(in_order(beginnings)).encode()).hexdigest()
    assert found[:16] == "0ef121037db750e2"


async def test_every_line_has_one_place_within_its_run(tmp_path: Path) -> None:
    storage, texts = open_storage(str(tmp_path)), shuffled(50, (RUN_LINES + 500) // 50)
    lines = [encoded(line(f"{number}", text)).strip() for number, text in enumerate(texts)]
    await storage.put("files/a", in_pieces(b"\n \n".join(lines)))
    source, check = await InputFile.read(storage, "files/a", TEXT)
    assert (check.total, check.errors) == (len(lines), [])
    found = await source.lines(range(len(lines)))
    assert list(found) == list(range(len(lines)))
    numbers = [int(json.loads(text)["custom_id"]) for text in found.values()]
    assert sorted(numbers[:RUN_LINES]) == list(range(RUN_LINES))
    assert sorted(numbers[RUN_LINES:]) == list(range(RUN_LINES, len(lines)))
    assert all(found[place] == lines[number] for place, number in enumerate(numbers))
    for run in (numbers[:RUN_LINES], numbers[RUN_LINES:]):
        prompts = [texts[number][:3] for number in run]
        changes = sum(one != other for one, other in itertools.pairwise(prompts))
        assert changes == len(set(prompts)) - 1
    some = random.Random(3).sample(range(len(lines)), 64)
    assert await source.lines(some) == {place: found[place] for place in sorted(some)}
