"""A prompt is a function of its job: rendered again, by whichever worker and whenever, it is the same."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from agent_desk import agent_desk, ready
from tokenizers import Tokenizer
from tokenizers.models import BPE
from waiting import until

from octavo.queue.keys import Keys, submitted_at
from octavo.terms.conversation import Message
from octavo.terms.models import JobRequest
from octavo.terms.workers import PrefixPin
from octavo_worker.agent.prompts.template import ChatTemplate, TemplateFailed
from octavo_worker.agent.prompts.tokens import Prompts
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import AddRequest

CLOCK = "{{ strftime_now('%A %d %B %Y %H:%M:%S.%f %Z %z %s %%s %c') }}{{ messages[0].content }}"
SAID = (Message(role="user", content="hi"),)


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def move(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose template tells the time to the microsecond."""
    copied = Path(shutil.copytree(model_folder("demo"), tmp_path / "clock"))
    config = json.loads((copied / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (copied / "tokenizer_config.json").write_text(json.dumps(config))
    (copied / "chat_template.jinja").write_text(CLOCK)
    return copied


def text_of(source: str, at: datetime) -> str:
    return "".join(text for text, _ in ChatTemplate(source, special=[], variables={}).render(SAID, at=at))


def test_the_clock_is_the_jobs_in_utc(in_zone: Callable[[str], None]) -> None:
    at = datetime(2031, 2, 28, 23, 59, 58, 765_432, tzinfo=UTC)
    seconds = int(at.timestamp())
    for zone in ("UTC", "Pacific/Kiritimati", "America/Los_Angeles"):
        in_zone(zone)
        assert text_of(CLOCK, at) == (
            f"Friday 28 February 2031 23:59:58.765432 UTC +0000 {seconds} %s Fri Feb 28 23:59:58 2031hi"
        )


def test_the_form_of_messages_does_not_depend_on_when_a_worker_starts() -> None:
    """A template that shows developers until 2024 only knows them on any day."""
    shown = "m.role != 'developer' or strftime_now('%Y') < '2025'"
    source = f"{{% for m in messages if {shown} %}}{{{{ m.role }}}}:{{{{ m.content }}}};{{% endfor %}}"
    said = (Message(role="developer", content="x"), Message(role="user", content="y"))
    pieces = ChatTemplate(source, special=[], variables={}).render(said, at=datetime(2024, 1, 1, tzinfo=UTC))
    assert pieces == [("developer:x;user:y;", False)]


@pytest.mark.parametrize("chance", ["{{ ['a', 'b', 'c'] | random }}", "{{ lipsum() }}"])
def test_a_template_that_draws_is_refused(chance: str) -> None:
    with pytest.raises(TemplateFailed, match=r"random|lipsum"):
        text_of(chance + "{{ messages[0].content }}", datetime.now(UTC))


def test_a_tokenizer_leaves_out_no_merges(tmp_path: Path) -> None:
    """As some do while a model is trained."""
    vocabulary = {"a": 0, "b": 1, "ab": 2, "abab": 3}
    Tokenizer(BPE(vocabulary, [("a", "b"), ("ab", "ab")], dropout=0.5)).save(str(tmp_path / "tokenizer.json"))
    prompts = Prompts(tmp_path)
    assert all(prompts.encode(JobRequest(model="m", prompt="abab" * 8)).ids == [3] * 8 for _ in range(20))


def test_an_id_tells_when_its_job_was_submitted() -> None:
    before = time.time()
    at = submitted_at(Keys(3).new_job_id())
    assert int(before * 1000) / 1000 <= at.timestamp() <= time.time()
    assert submitted_at("g00_01ARZ3NDEKTSV4RRFFQ69G5FAV").isoformat() == "2016-07-30T23:54:10.259000+00:00"
    assert submitted_at("g00_ZZZZZZZZZZZZZZZZZZZZZZZZZZ").year == 9999
    with pytest.raises(ValueError, match="not a job id"):
        submitted_at("g00_01ARZ3NDEKTSV4RRFFQ69G5FAU")


async def test_each_attempt_has_the_prompt_of_the_first(
    redis_url: str, folder: Path, in_zone: Callable[[str], None]
) -> None:
    in_zone("America/Los_Angeles")
    async with agent_desk(redis_url, prompts=Prompts(folder), attached=False) as desk:
        desk.agent.attach(desk.engine, ready(vocab_size=4096))
        job_id = desk.queue.submit(None, messages=SAID, sampling={"max_tokens": 9})
        desk.agent.take(desk.claim())
        await until(lambda: desk.engine.of(AddRequest))
        first = desk.engine.of(AddRequest)[0]
        desk.generate(first, 5, 6)
        await until(lambda: desk.queue.stored(job_id) == 2)
        await desk.agent.release()
    in_zone("Pacific/Kiritimati")
    other = Prompts(folder)
    async with agent_desk(redis_url, prompts=other, attached=False) as desk:
        desk.agent.attach(desk.engine, ready(vocab_size=4096))
        desk.agent.take(desk.claim())
        await until(lambda: desk.engine.of(AddRequest))
        second = desk.engine.of(AddRequest)[0]
    assert list(second.prompt) == list(first.prompt)
    assert list(second.sequences[0].tokens) == [5, 6]
    assert submitted_at(job_id).strftime("%H:%M:%S.%f UTC +0000") in other.decode(second.prompt)


def test_a_pinned_prefix_has_todays_date_in_utc(folder: Path, in_zone: Callable[[str], None]) -> None:
    """Prompts of today begin with it."""
    in_zone("Pacific/Kiritimati")
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%H %d %m %Y') }}{{ messages[0].content }}")
    prompts, before = Prompts(folder), datetime.now(UTC)
    pinned = prompts.decode(prompts.encode_prefix(PrefixPin(name="p", model="m", tenant="t", system="You are")))
    assert any(pinned.startswith(at.strftime("%H %d %m %Y")) for at in (before, datetime.now(UTC)))
