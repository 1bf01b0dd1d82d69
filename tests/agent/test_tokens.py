"""Prompts that the model cannot run are refused before they reach the engine."""

from __future__ import annotations

import pytest

from octavo.models import JobRequest, SamplingParams
from octavo_worker.agent.tokens import PromptRejected, check_ids


def check(ids: list[int], **sampling: object) -> None:
    request = JobRequest(model="m", prompt=tuple(ids), sampling=SamplingParams(**sampling))
    check_ids(ids, request=request, max_model_len=8, vocab_size=100)


def test_a_prompt_leaves_room_for_a_token_unless_none_is_asked_for() -> None:
    check([1] * 7)
    check([1] * 8, max_tokens=0)
    for length, most in ((8, 1), (9, 0)):
        with pytest.raises(PromptRejected, match="8 tokens") as refused:
            check([1] * length, max_tokens=most)
        assert refused.value.error.code == "context_length_exceeded"


def test_token_ids_are_in_the_vocabulary() -> None:
    check([99], logit_bias={99: 1.0})
    with pytest.raises(PromptRejected, match="token id 100") as refused:
        check([100])
    assert refused.value.error.param == "prompt"
    with pytest.raises(PromptRejected, match="token id 100") as refused:
        check([1], logit_bias={100: 1.0})
    assert refused.value.error.param == "logit_bias"
