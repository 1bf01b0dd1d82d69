"""Settings that cannot work are refused in words before anything starts."""

from __future__ import annotations

import sys

import pytest
from pydantic import ValidationError

from octavo import AsyncClient, ServerUnavailable
from octavo.queue.connection import default_url
from octavo_worker.agent.failures import WorkerFailed
from octavo_worker.agent.supervisor import serve
from octavo_worker.assembly.settings import WorkerSettings
from octavo_worker.contract.options import ModelOptions, WorkerOptions, options_of

ENGINE = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_what_is_empty_in_the_environment_is_left_to_its_default(monkeypatch):
    monkeypatch.setenv("OCTAVO_REDIS_URL", "")
    monkeypatch.setenv("OCTAVO_KV_MEMORY", "")
    settings = WorkerSettings()
    assert (settings.redis_url, settings.kv_memory) == (default_url(), None)


@pytest.mark.parametrize("name", ["kv_memory", "swap_memory", "lease"])
def test_no_amount_is_infinite(name):
    with pytest.raises(ValidationError):
        WorkerSettings(**{name: float("inf")})


@pytest.mark.parametrize("value", ["on", "draft", "draft:", "eagle", "eagle:", "NGRAM"])
def test_a_way_to_guess_that_is_not_known_is_refused_in_words(value):
    known = "use off, ngram, suffix, draft:FOLDER, a smaller model, or eagle:FOLDER, an EAGLE-3 head"
    with pytest.raises(ValidationError, match=f"'{value}' is no way to guess tokens: {known}"):
        WorkerSettings(speculate=value)


def test_layers_for_several_tokens_are_refused_with_the_reason():
    with pytest.raises(ValidationError, match=r"mtp is for checkpoints with layers .* does not read; give eagle:"):
        WorkerSettings(speculate="mtp")


async def test_a_name_that_no_job_can_ask_for():
    with pytest.raises(WorkerFailed, match="--served-name"):
        await serve(WorkerSettings(served_name="My Model").options(), engine_command=ENGINE)


async def test_a_tokenizer_that_cannot_be_read(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(WorkerFailed, match="the tokenizer in"):
        await serve(WorkerSettings(model=str(tmp_path)).options(), engine_command=ENGINE)


@pytest.mark.parametrize("url", ["localhost:6379", "redis://host:port"])
async def test_an_address_that_is_none(url):
    with pytest.raises(ServerUnavailable, match="no address"):
        AsyncClient(url)


def test_every_option_is_a_flag_of_the_worker() -> None:
    settings = WorkerSettings(
        model="org/name", kv_memory=0.5, swap_memory=0.25, block_size=32, dtype="bfloat16", lease=2.0
    )
    tables = (ModelOptions, WorkerOptions)
    named = {option.flag or name for table in tables for name, (_, option) in options_of(table).items()}
    assert named == set(WorkerSettings.model_fields)
    assert all(field.description for field in WorkerSettings.model_fields.values())
    options = settings.options()
    assert options.lease == 2.0
    engine = options.engine
    assert (engine.model, engine.block_size, engine.dtype) == ("org/name", 32, "bfloat16")
    assert (engine.kv_cache_bytes, engine.host_cache_bytes) == (1 << 29, 1 << 28)
    assert ModelOptions.from_json(engine.to_json()) == engine


def test_defaults_are_those_of_the_tables(monkeypatch) -> None:
    monkeypatch.delenv("OCTAVO_CHECK_INTEGRITY", raising=False)
    assert WorkerSettings().options().engine == ModelOptions() == ModelOptions.of_flags("demo", {})


def test_an_address_with_a_password_is_not_shown() -> None:
    assert "secret" not in repr(WorkerSettings(redis_url="redis://user:secret@host").options())
