"""Grammars on the bundled model: texts obey, neighbours notice nothing, and when samples are chosen does not matter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from followed import END, VOCAB, schema, text_of
from forked_ranks import forked_ranks
from gpus import devices, has_gpu
from two_gpus import TWO_GPUS

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest, BeamOptions, Grammar
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.ranks.processes import Ranks

from .drive import Answers, Engine, request

PERSON = schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "tags": {"type": "array", "items": {"enum": ["a", 1]}},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
)
PATTERN = "[0-9]{2}[a-z ]{30}"
WORDS = Grammar("choice", '["yes", "yesterday", "no"]')


DEVICES = devices(pytest.mark.beyond_plain)
RANKS = ["cpu ranks", *([pytest.param("cuda ranks", marks=TWO_GPUS)] if has_gpu() else [])]


@pytest.fixture(scope="module", params=[*DEVICES, *RANKS])
def runner(request: pytest.FixtureRequest) -> Iterator[ModelRunner]:
    device, _, ranks = request.param.partition(" ")
    options = ModelOptions(
        model="demo", device=device, num_blocks=400, host_cache_bytes=8 << 20, max_running=64, deterministic=True,
        tensor_parallel=2 if ranks else 1,
    )  # fmt: skip
    others = None
    if ranks:
        others = forked_ranks(options) if device == "cpu" else Ranks.start(options)
    runner = load_runner(options, others)
    assert runner.vocab_size == VOCAB
    yield runner
    if others is not None:
        others.close()


def free() -> list[AddRequest]:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9},
        {"temperature": 1.0, "logprobs": 2},
        {"frequency_penalty": 0.7},
    ]
    return [request(f"free{i}", [5 + i, 77, 300 + i], max_tokens=40, seed=i, **kinds[i % 4]) for i in range(8)]


def bound(**more: Any) -> list[AddRequest]:
    """Greedy and not, with all that a job may ask of its logits, in twos, and beams."""
    kinds: list[dict[str, Any]] = [
        {"grammar": PERSON},
        {"grammar": PERSON, "temperature": 1.0, "top_p": 0.9},
        {"grammar": PERSON, "temperature": 1.2, "logprobs": 3, "repetition_penalty": 1.2, "logit_bias": {7: 5.0}},
        {"grammar": Grammar("regex", PATTERN), "temperature": 0.8, "presence_penalty": 0.5, "n": 3},
        {"grammar": WORDS, "temperature": 1.0, "n": 2, "min_tokens": 4},
        {"grammar": Grammar("regex", PATTERN), "n": 2, "beam": BeamOptions(4)},
    ]
    fixed = {"max_tokens": 120, "stop_token_ids": [END], **more}
    return [request(f"bound{i}", [9, 20 + i, 411], seed=i, **{**fixed, **kinds[i % 6]}) for i in range(12)]


def check(answers: Answers) -> None:
    for asked in bound():
        assert asked.grammar is not None
        for tokens in answers.tokens[asked.id].values():
            text = text_of(tokens)
            if len(tokens) == 120 and tokens[-1] != END:
                continue
            if asked.grammar.kind == "json_schema":
                jsonschema.validate(json.loads(text), json.loads(asked.grammar.text))
            elif asked.grammar.kind == "regex":
                assert re.fullmatch(PATTERN, text)
            else:
                assert text in json.loads(WORDS.text)


@pytest.mark.full(but=1)
def test_texts_obey_and_neighbours_are_byte_identical(runner: ModelRunner) -> None:
    together, alone = Engine(runner).run([*free(), *bound()]), Engine(runner).run(free())
    check(together)
    for asked in free():
        assert together.tokens[asked.id] == alone.tokens[asked.id]
        assert together.logprobs[asked.id] == alone.logprobs[asked.id]


@pytest.mark.full
def test_alone_in_a_batch_and_without_running_ahead(runner: ModelRunner) -> None:
    together = Engine(runner).run(bound())
    for asked in bound():
        assert Engine(runner).run([asked]).tokens[asked.id] == together.tokens[asked.id]
    in_turn = Engine(runner)
    in_turn.asynchronous = False
    assert in_turn.run(bound()).tokens == together.tokens


@pytest.mark.full(but=1)
@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_little_memory_changes_nothing(runner: ModelRunner, preemption: str) -> None:
    narrow = Engine(
        runner,
        num_blocks=40,
        num_host_blocks=runner.num_host_blocks,
        watermark=0.0,
        policy=PreemptionPolicy(preemption),
    )
    answers = narrow.run([*bound(), *free()])
    assert answers.stats.preemptions > 0
    assert answers.tokens == Engine(runner).run([*bound(), *free()]).tokens


@pytest.mark.full(but=1)
def test_a_takeover_in_the_middle(runner: ModelRunner) -> None:
    whole = Engine(runner).run(bound())
    heirs = []
    for asked in bound():
        if asked.sampling.beam is None:
            for sequence in asked.sequences:
                tokens = whole.tokens[asked.id][sequence.index]
                sequence.tokens = tokens[: max(1, len(tokens) // 2)]
            asked.sequences = [s for s in asked.sequences if len(s.tokens) < len(whole.tokens[asked.id][s.index])]
            heirs += [asked] if asked.sequences else []
    resumed = Engine(runner).run(heirs)
    for asked in heirs:
        for sequence in asked.sequences:
            assert resumed.tokens[asked.id][sequence.index] == whole.tokens[asked.id][sequence.index]
