"""Families with recurrent layers are what transformers computes, alone, in a batch and in pieces of any length."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.decoder import Decoder
from octavo_worker.runner.paged import PagedRunner

from .by_hand import ByHand, Said
from .hybrid import HYBRID
from .tiny import CONTEXT, VOCAB
from .zoo import save

CLOSE = 1e-4
LENGTHS = (1, 2, 7, 40)
NEW = 12


def prompts() -> list[list[int]]:
    rng = random.Random(11)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, PreTrainedModel]]:
    @cache
    def made(name: str) -> tuple[Path, PreTrainedModel]:
        folder = tmp_path_factory.mktemp(name)
        return folder, save(name, folder, HYBRID[name], width=1.0)

    return made


def runner_of(folder: Path, **options: object) -> PagedRunner:
    named = {
        "device": "cpu",
        "dtype": "float32",
        "num_blocks": 65,
        "threads": 1,
        "state_slots": 40,
        "max_model_len": CONTEXT,
        **options,
    }
    runner = load_runner(ModelOptions(model=str(folder), **named))  # type: ignore[arg-type]
    assert isinstance(runner, PagedRunner)
    assert isinstance(runner.model, Decoder)
    return runner


def assert_same(one: list[Said], other: list[Said]) -> None:
    assert [said.text for said in one] == [said.text for said in other]
    assert [said.logprobs for said in one] == [said.logprobs for said in other]


@pytest.mark.parametrize("name", HYBRID)
def test_answers_are_those_of_transformers(name: str, folders: Callable[[str], tuple[Path, PreTrainedModel]]) -> None:
    folder, oracle = folders(name)
    runner = runner_of(folder)
    assert "state-f32" in runner.numerics
    for said, prompt in zip(ByHand(runner).answers(prompts(), NEW), prompts(), strict=True):
        with torch.inference_mode():
            logits = oracle(torch.tensor([said.text])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert said.text[len(prompt) :] == logits.argmax(-1).tolist()
        assert said.logprobs == pytest.approx(logits.max(-1).values.tolist(), abs=CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HYBRID)
def test_no_cut_and_no_neighbour_shows(
    name: str, dtype: str, folders: Callable[[str], tuple[Path, PreTrainedModel]]
) -> None:
    folder, _ = folders(name)
    runner = runner_of(folder, dtype=dtype, num_blocks=200, state_slots=90)
    hand = ByHand(runner)
    expected = hand.answers(prompts(), NEW)
    for piece in (1, 2, 3, 16, 37):
        assert_same(hand.answers(prompts(), NEW, piece), expected)
    for prompt, said in zip(prompts(), expected, strict=True):
        assert_same(hand.answers([prompt], NEW), [said])
