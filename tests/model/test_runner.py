"""A runner does what its plan asks for: copies first, one answer a sequence, blame where it belongs."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import Sampled, SampleSpec, SequenceStep, StepError, StepPlan
from octavo_worker.runner.paged import PagedRunner


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    folder = tmp_path_factory.mktemp("llama")
    LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    ).save_pretrained(folder)
    options = ModelOptions(
        model=str(folder),
        load_format="dummy",
        dtype="float32",
        num_blocks=20,
        host_cache_bytes=1 << 16,
        threads=1,
        token_budget=8,
        max_running=4,
    )
    return load_runner(options)


SAMPLED = SampleSpec(EngineSampling(seed=5, max_tokens=9, temperature=0.0, logprobs=0), 0, [], [])


def score(runner: PagedRunner, *steps: SequenceStep, copies: list[tuple[int, int]] | None = None) -> list[float]:
    """Log-probability of each sequence's next token: a fingerprint of everything it attended to."""
    result = runner.launch(StepPlan(list(steps), 0, copies or [])).result()
    return [s.logprob.logprob for answer in result.sequences for s in answer.samples if s.logprob is not None]


PROMPT = [7, 3, 9, 4, 4, 1, 8, 2, 6, 5, 0, 11, 13, 12, 19, 17, 23, 29, 31, 37]


def test_context_is_found_through_the_block_table(runner: PagedRunner) -> None:
    whole = score(runner, SequenceStep(PROMPT, 0, [5, 2], [SAMPLED]))
    score(runner, SequenceStep(PROMPT[:17], 0, [9, 3]))
    assert score(runner, SequenceStep(PROMPT[17:], 17, [9, 3], [SAMPLED])) == whole


def test_copies_come_before_the_tokens(runner: PagedRunner) -> None:
    """The copied block stands in for the original, and writing to it leaves the original alone."""
    whole = score(runner, SequenceStep(PROMPT, 0, [5, 2], [SAMPLED]))
    score(runner, SequenceStep(PROMPT[:19], 0, [9, 3]))
    assert score(runner, SequenceStep([PROMPT[19]], 19, [9, 4], [SAMPLED]), copies=[(3, 4)]) == whole
    other = score(runner, SequenceStep([49], 19, [9, 3], [SAMPLED]))
    assert other != whole
    assert score(runner, SequenceStep([PROMPT[19]], 19, [9, 4], [SAMPLED])) == whole


def test_a_plan_of_copies_alone_is_carried_out(runner: PagedRunner) -> None:
    whole = score(runner, SequenceStep(PROMPT[:16], 0, [6], []), SequenceStep(PROMPT, 0, [6, 7], [SAMPLED]))
    assert runner.launch(StepPlan([], 0, [(6, 8)])).result().sequences == []
    assert score(runner, SequenceStep(PROMPT[16:], 16, [8, 7], [SAMPLED])) == whole


def test_what_comes_from_the_host_may_leave_for_it_at_once(runner: PagedRunner) -> None:
    host = runner.first_host_block
    whole = score(runner, SequenceStep(PROMPT, 0, [5, 2], [SAMPLED]))
    runner.launch(StepPlan([], 0, swap_out=[(5, host + 1)])).result()
    runner.launch(StepPlan([], 0, swap_in=[(host + 1, 15)], swap_out=[(15, host + 2)])).result()
    runner.launch(StepPlan([], 0, swap_in=[(host + 2, 10)])).result()
    assert score(runner, SequenceStep(PROMPT[16:], 16, [10, 7], [SAMPLED])) == whole


def test_answers_come_in_order_and_only_where_asked(runner: PagedRunner) -> None:
    steps = [
        SequenceStep([3], 0, [1], [SAMPLED]),
        SequenceStep([4, 5], 0, [2]),
        SequenceStep([6, 7], 0, [3], [SAMPLED, SAMPLED], prompt_logprobs=2, targets=[7]),
    ]
    result = runner.launch(StepPlan(steps, 1)).result()
    assert [len(s.samples) for s in result.sequences] == [1, 0, 2]
    assert [len(s.prompt_logprobs) for s in result.sequences] == [0, 0, 1]
    assert len(result.sequences[2].prompt_logprobs[0].top) == 2
    assert result.sequences[2].samples[0] == result.sequences[2].samples[1]


def test_more_tokens_than_the_budget_still_run(runner: PagedRunner) -> None:
    assert len(score(runner, SequenceStep(PROMPT * 3, 0, [1, 2, 3, 4], [SAMPLED]))) == 1


@pytest.mark.parametrize("token", [-1, 50])
def test_a_token_outside_the_vocabulary_blames_its_sequence(runner: PagedRunner, token: int) -> None:
    steps = [SequenceStep([3], 0, [1], [SAMPLED]), SequenceStep([2, token], 0, [2], [SAMPLED])]
    with pytest.raises(StepError, match="vocabulary") as failure:
        runner.launch(StepPlan(steps, 0)).result()
    assert failure.value.sequence == 1


def verified(runner: PagedRunner, spec: SampleSpec, *, others: bool) -> list[Sampled]:
    """Samples after each of the last three tokens of `PROMPT`, computed in one step as if they were to be verified."""
    runner.launch(StepPlan([SequenceStep(PROMPT[:17], 0, [9, 3])], 0)).result()
    steps = [SequenceStep(PROMPT[17:], 17, [9, 3], [spec] * 3, [0, 1, 2])]
    if others:
        runner.launch(StepPlan([SequenceStep(PROMPT[:16], 0, [6])], 0)).result()
        steps = [SequenceStep([5], 16, [6, 7], [SAMPLED]), *steps, SequenceStep([1, 2], 0, [8], [SAMPLED] * 2)]
    return runner.launch(StepPlan(steps, len(steps) - others)).result().sequences[int(others)].samples


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.9, "top_k": 9}, {"repetition_penalty": 3.0, "frequency_penalty": 0.5}, {"min_tokens": 2}],
    ids=str,
)
def test_rows_of_one_step_are_those_of_steps_of_one_row(
    runner: PagedRunner, sampling: dict[str, Any], others: bool
) -> None:
    """Token, log-probability and all: positions, penalties and forbidden tokens are those of each row."""
    params = EngineSampling(**{"seed": 5, "max_tokens": 9, "temperature": 0.0, "logprobs": 2, **sampling})
    output: list[int] = []
    spec = SampleSpec(params, 0, PROMPT[:17], output, tuple(range(40)), 17 + params.min_tokens)
    together = verified(runner, spec, others=others)
    for at, want in enumerate(together, 17):
        output.append(PROMPT[at])
        step = SequenceStep([PROMPT[at]], at, [9, 3], [spec])
        assert runner.launch(StepPlan([step], 1)).result().sequences[0].samples == [want]


def test_some_rows_of_a_step_may_be_left_out(runner: PagedRunner) -> None:
    spec = SAMPLED
    every = verified(runner, spec, others=False)
    step = SequenceStep(PROMPT[17:], 17, [9, 3], [spec] * 2, [0, 2])
    assert runner.launch(StepPlan([step], 1)).result().sequences[0].samples == [every[0], every[2]]
