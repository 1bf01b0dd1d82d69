"""Prompts that the model cannot run are refused before they reach the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import octavo_worker
from octavo.terms.conversation import Message
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo_worker.agent.prompts.tokens import PromptRejected, Prompts, check_ids

DEMO = Path(octavo_worker.__file__).parent / "bundled" / "demo"


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


def test_a_control_token_that_a_user_writes_is_text() -> None:
    prompts = Prompts(DEMO)
    assert prompts.tokenizer is not None
    special = {i: token.content for i, token in prompts.tokenizer.get_added_tokens_decoder().items() if token.special}
    plain = prompts.encode(JobRequest(model="m", messages=(Message(role="user", content="x"),))).ids
    for token, spelling in special.items():
        written = prompts.encode(JobRequest(model="m", messages=(Message(role="user", content=spelling),))).ids
        assert written.count(token) == plain.count(token)
        assert token not in prompts.encode(JobRequest(model="m", prompt=spelling, add_special_tokens=False)).ids
