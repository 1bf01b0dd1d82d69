"""lm-eval: log-likelihoods and generations of the bundled model, with lm-eval's own run of it as the oracle."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from chat_templates import DEMO

pytestmark = pytest.mark.clients

QUESTIONS = [
    {"question": f"Once upon a time there was a {animal}. It was", "choices": choices, "answer": 0}
    for animal in ("dog", "little bear", "princess in a castle")
    for choices in ([" happy.", " not there, and so on."], [" very sad because", " big", " zebra quartz 17"])
]
CHOICES = {
    "task": "choices",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "doc_to_choice": "{{choices}}",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
ROLLING = {
    "task": "rolling",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{question}}",
    "metric_list": [{"metric": "bits_per_byte"}],
}
GENERATIONS = {
    "task": "generations",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": [".", "\n"], "max_gen_toks": 12, "do_sample": False, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
}
ORACLE = {"pretrained": str(DEMO), "device": "cpu", "dtype": "float32", "max_length": 1024, "add_bos_token": True}


async def evaluate(
    folder: Path, model: str, arguments: dict[str, Any], *tasks: dict[str, Any], **options: Any
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """By task, what is made of the answers, and the answers."""
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    found = await asyncio.to_thread(
        lm_eval.simple_evaluate,
        model,
        model_args=arguments,
        tasks=[{**source, **task} for task in tasks],
        bootstrap_iters=0,
        **options,
    )
    answers = {
        task: [sample["resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
        for task, samples in found["samples"].items()
    }
    return found["results"], answers


def likelihoods(answers: list[Any]) -> tuple[list[float], list[bool]]:
    """Likelihood of every choice, and whether the model would have said it."""
    pairs = [answer for sample in answers for (answer,) in sample]
    return [float(pair[0]) for pair in pairs], [bool(pair[1]) for pair in pairs]


@pytest.mark.parametrize("batch_size", [1, 4])
async def test_completions_are_scored_and_generated_as_by_itself(demo_url, tmp_path, batch_size):
    tasks = (CHOICES, ROLLING, GENERATIONS)
    oracle, expected = await evaluate(tmp_path, "hf", ORACLE, *tasks)
    arguments = {
        "model": "demo",
        "base_url": f"{demo_url}/v1/completions",
        "tokenizer": str(DEMO),
        "max_length": 1024,
        "max_retries": 1,
        "num_concurrent": 4,
        "add_bos_token": True,  # prompts are sent as tokens: lm-eval has to begin them as the server would
    }
    found, answers = await evaluate(tmp_path, "local-completions", arguments, *tasks, batch_size=batch_size)
    scores, greedy = likelihoods(answers["choices"])
    assert scores == pytest.approx(likelihoods(expected["choices"])[0], abs=0.01)
    assert greedy == likelihoods(expected["choices"])[1]
    for metric in ("acc,none", "acc_norm,none"):
        assert found["choices"][metric] == oracle["choices"][metric]
    rolling = "bits_per_byte,none"
    assert found["rolling"][rolling] == pytest.approx(oracle["rolling"][rolling], abs=0.01)
    assert answers["generations"] == expected["generations"]


async def test_chat_completions_are_generated_as_by_itself(demo_url, tmp_path):
    options = {"apply_chat_template": True, "fewshot_as_multiturn": True}
    _, expected = await evaluate(tmp_path, "hf", ORACLE, GENERATIONS, **options)
    arguments = {"model": "demo", "base_url": f"{demo_url}/v1/chat/completions", "max_retries": 1, "num_concurrent": 4}
    _, answers = await evaluate(tmp_path, "local-chat-completions", arguments, GENERATIONS, **options)
    assert answers == expected
