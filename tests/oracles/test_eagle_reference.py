"""Drafts of an EAGLE-3 head beside those of a few lines of torch: the same, step after step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_heads import head_values, random_tensors, write_head
from eagle_reference import ReferenceHead
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import UNKNOWN, SampleRow, SampleSpec, SequenceStep, StepPlan
from octavo_worker.messages import EngineSampling
from octavo_worker.model import load_runner
from octavo_worker.model.runner import PagedRunner
from octavo_worker.model.sampler import sample

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
"""What config.json says, the hidden states that are meant, the names of tensors, and whether the head embeds."""


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
        model=str(folder), speculate=f"eagle:{head}", device="cpu", dtype="float32", threads=1, num_blocks=40
    )
    runner = load_runner(options)
    assert isinstance(runner, PagedRunner)
    return runner, ReferenceHead(values, tensors, model, taps, at)


def chooser(params: EngineSampling) -> Callable[[Tensor, int], int]:
    return lambda logits, position: sample(logits[None].clone(), [SampleRow(params, 0, position)]).tokens.item()


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
    said, compared, run = [17], 0, 1 + int(temperature > 0)
    for wanted, right in ((2, 1), (0, 0), (4, 4), (1, 0), (0, 0), (0, 0), (5, 3), (3, 0), (2, 0)):
        spec = SampleSpec(params, 0, prompt, said)
        tokens, rows = (said[-1], *(UNKNOWN,) * wanted), tuple(range(1 + wanted)) if wanted else ()
        step = SequenceStep(tokens, len(prompt) + len(said) - 1, table, (spec,) * (1 + wanted), rows, run_id=run)
        (result,) = runner.launch(StepPlan([step], 1)).result().sequences
        if wanted:
            assert list(result.drafts) == reference.drafts([*prompt, *said], wanted, chooser(params))
            compared += wanted
        said += [*result.drafts[:right], (5 * len(said)) % VOCAB]
    assert compared == 17
    assert len(prompt) + len(said) > BLOCK + 4
