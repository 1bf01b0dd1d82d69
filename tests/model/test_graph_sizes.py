"""What steps are padded to, so that a few graphs serve all of them."""

from __future__ import annotations

from octavo_worker.model.cuda.shapes import PROMPT_TOKENS, batch_sizes, prompt_sizes


def test_every_batch_has_a_size_that_holds_it() -> None:
    for most in (1, 3, 8, 20, 256):
        sizes = batch_sizes(most)
        assert sizes[-1] == most
        assert sizes == sorted(set(sizes))


def test_every_step_with_prompts_has_sequences_that_hold_it_and_tokens_within_the_budget() -> None:
    for most in (1, 3, 8, 20, 256):
        sequences, tokens = prompt_sizes(most, 100)
        assert sequences[0] == 1
        assert sequences[-1] == most
        assert sequences == sorted(set(sequences))
        assert tokens == [size for size in PROMPT_TOKENS if size <= 100]


def test_a_runner_that_captures_no_prompts_has_no_sizes_for_them() -> None:
    assert prompt_sizes(256, 0)[1] == []
