"""Drafts of an EAGLE-3 head beside those of a few lines of torch: the same, step after step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_heads import head_values, random_tensors, write_head
from eagle_reference import ReferenceHead
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import UNKNOWN, SampleRow, SampleSpec, SequenceStep, StepPlan
from octavo_worker.runner.paged import PagedRunner
from octavo_worker.runner.sampler import sample

VOCAB, LAYERS, BLOCK = 130, 7, 16
ROPE3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS: dict[str, tuple[dict[str, Any], tuple[int, ...], str, bool]] = {
    "as the paper has it": ({}, (2, 3, 4), "midlayer.", True),
    "a part of the vocabulary": ({"draft_vocab_size": 40}, (2, 3, 4), "midlayer.", True),
    "the target's embedding": ({"draft_vocab_size": 40}, (2, 3, 4), "layers.0.", False),
    "layers counted before": ({"eagle_aux_hidden_state_layer_ids": [2, 5, 6]}, (2, 5, 6), "midlayer.", True),
    "layers counted behind": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 5], "use_aux_hidden_state": True}},
        (2, 5, 6),
        "layers.0.",
        True,
    ),
    "of two layers": ({"eagle_aux_hidden_state_layer_ids": [0, 6]}, (0, 6), "midlayer.", True),
    "long texts, many heads": (
        {"rope_scaling": ROPE3 | {"original_max_position_embeddings": 32}, "num_key_value_heads": 1, "head_dim": 24},
        (2, 3, 4),
        "midlayer.",
        True,
    ),
    "another name": ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 40}, (2, 3, 4), "layers.0.", True),
}  # fmt: skip
"""Fields of config.json, the hidden states that are meant, the names of tensors, and whether the head embeds."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=56, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("target")
    model.save_pretrained(folder)
    return folder, model


Pair = tuple[PagedRunner, ReferenceHead]


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, target: tuple[Path, PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    differences, taps, at, embeds = KINDS[request.param]
    folder, model = target
    values = head_values(model.config.to_dict(), **differences)
    tensors = random_tensors(values, taps=len(taps), at=at)
    if not embeds:
        del tensors["embed_tokens.weight"]
    head = write_head(tmp_path_factory.mktemp("head"), values, tensors)
    options = ModelOptions(
        model=str(folder),
        speculate=f"eagle:{head}",
        device="cpu",
        dtype="float32",
        threads=1,
        num_blocks=40,
        host_cache_bytes=1 << 20,
    )
    runner = load_runner(options)
    assert isinstance(runner, PagedRunner)
    return runner, ReferenceHead(values, tensors, model, taps, at)


RUNS = count(1)
"""Numbers of runs: none is ever used again."""


def drafts_of(
    runner: PagedRunner, prompt: list[int], said: list[int], wanted: int, table: list[int], run: int, heat: float = 0.8
) -> list[int]:
    """Drafts of a step that verifies so many behind what was said."""
    spec = SampleSpec(EngineSampling(seed=9, max_tokens=99, temperature=heat), 0, prompt, said)
    tokens, rows = (said[-1], *(UNKNOWN,) * wanted), tuple(range(1 + wanted)) if wanted else ()
    start = len(prompt) + len(said) - 1
    step = SequenceStep(tokens, start, list(table), (spec,) * (1 + wanted), rows, run_id=run)
    (result,) = runner.launch(StepPlan([step], 1)).result().sequences
    return list(result.drafts)


def chooser(params: EngineSampling) -> Callable[[Tensor, int], int]:
    return lambda logits, position: sample(logits[None].clone(), [SampleRow(params, 0, position)]).tokens.item()


@pytest.mark.full(but=4)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@torch.inference_mode()
def test_drafts_are_those_of_the_reference(pair: Pair, temperature: float) -> None:
    """Also behind drafts that were right, of which the target has left its own states by then, behind wrong ones,
    behind steps without drafts, and across blocks. Which are right is chosen here: any text will do."""
    runner, reference = pair
    params = EngineSampling(seed=9, max_tokens=99, temperature=temperature)
    prompt, table = [(7 * i + 3) % VOCAB for i in range(13)], [5, 9, 2, 30]
    runner.launch(StepPlan([SequenceStep(prompt[:6], 0, table)], 0)).result()
    runner.launch(StepPlan([SequenceStep(prompt[6:], 6, table)], 0)).result()
    said, compared, run = [17], 0, next(RUNS)
    for wanted, right in ((2, 1), (0, 0), (4, 4), (1, 0), (0, 0), (0, 0), (5, 3), (3, 0), (2, 0)):
        found = drafts_of(runner, prompt, said, wanted, table, run, temperature)
        if wanted:
            assert found == reference.drafts([*prompt, *said], wanted, chooser(params))
            compared += wanted
        said += [*found[:right], (5 * len(said)) % VOCAB]
    assert compared == 17
    assert len(prompt) + len(said) > BLOCK + 4


class Text:
    """One sequence in the runner's memory, whose blocks are taken from those that were given back last."""

    def __init__(self, runner: PagedRunner) -> None:
        self.runner, self.run = runner, next(RUNS)
        self.free = list(range(1, 12))
        self.prompt, self.said = [(7 * i + 3) % VOCAB for i in range(13)], [17]
        self.table = [self.free.pop(), self.free.pop()]
        self.compute(self.prompt, self.table)

    def compute(self, tokens: list[int], table: list[int]) -> None:
        self.runner.launch(StepPlan([SequenceStep(tokens, 0, list(table))], 0)).result()

    def drafts(self, wanted: int) -> list[int]:
        end = len(self.prompt) + len(self.said) + wanted
        while len(self.table) * BLOCK < end:
            self.table.append(self.free.pop())
        return drafts_of(self.runner, self.prompt, self.said, wanted, self.table, self.run)

    def swap(self) -> None:
        hosts = [self.runner.first_host_block + 1 + i for i in range(len(self.table))]
        self.runner.launch(StepPlan([], 0, swap_out=list(zip(self.table, hosts, strict=True)))).result()
        self.free += self.table
        self.another()
        self.table = [self.free.pop(0) for _ in hosts]
        self.runner.launch(StepPlan([], 0, swap_in=list(zip(hosts, self.table, strict=True)))).result()
        self.run = next(RUNS)

    def copy(self) -> None:
        """As a fork does that writes first."""
        last, new = (len(self.prompt) + len(self.said) - 1) // BLOCK, self.free.pop(0)
        if last < len(self.table):
            self.runner.launch(StepPlan([], 0, copies=[(self.table[last], new)])).result()
            self.free.append(self.table[last])
            self.table[last] = new

    def another(self) -> None:
        """Another text comes and goes, with drafts of its own."""
        table = [self.free.pop(), self.free.pop()]
        prompt = [(3 * i + len(self.said)) % VOCAB for i in range(20)]
        self.compute(prompt, table)
        drafts_of(self.runner, prompt, [5], 3, table, next(RUNS))
        self.free += table


STEPS = st.one_of(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.sampled_from(["swap", "copy", "another"]))


@pytest.mark.parametrize("pair", ["a part of the vocabulary"], indirect=True)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=3, max_size=9))
def test_wherever_blocks_go_drafts_are_those_of_the_reference(pair: Pair, steps: list[tuple[int, int] | str]) -> None:
    runner, reference = pair
    text, choose = Text(runner), chooser(EngineSampling(seed=9, max_tokens=99, temperature=0.8))
    with torch.inference_mode():
        for step in steps:
            if isinstance(step, str):
                getattr(text, step)()
                continue
            wanted, right = step[0], min(step)
            found = text.drafts(wanted)
            assert found == (reference.drafts([*text.prompt, *text.said], wanted, choose) if wanted else [])
            text.said += [*found[:right], (5 * len(text.said)) % VOCAB]
