"""A thought that is closed when its budget is used up: at the same token, whatever happens to the job meanwhile."""

from __future__ import annotations

import pytest
from chat_templates import FAMILIES, Family
from hypothesis import given
from hypothesis import strategies as st

from octavo.queue.keys import Keys
from octavo.queue.protocol import Claim
from octavo.terms.messages import AnswerFormat, Chunk
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.prompts.answer_form import AnswerForm, EncodedPrompt
from octavo_worker.contract.messages import AddRequest, EngineSampling, TokenOutput

THOUGHTS = {
    "hermes": ("<think>", "one two three four five", "</think>"),
    "mistral_args": ("[THINK]", "one two three four five", "[/THINK]"),
    "harmony": (
        "<|channel|>analysis<|message|>",
        "one two three four five",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
}
ANSWER = "and so on and on"
LONGEST = 60


class Model:
    """A family's answer, token by token, from any place: it knows nothing of what was put in."""

    def __init__(self, name: str, thought: str | None = None) -> None:
        self.family: Family = FAMILIES[name]
        self.tokenizer = self.family.tokenizer()
        begin, usual, end = THOUGHTS[name]
        thought = usual if thought is None else thought
        self.script = self.encode(begin + thought + end + ANSWER)
        self.begin, self.closing = self.encode(begin), tuple(self.encode(end))
        self.form = AnswerForm(AnswerFormat(*self.family.formats), frozenset(), self.closing)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def at(self, place: int) -> int:
        return self.script[place % len(self.script)]


MODELS = {name: Model(name) for name in THOUGHTS}


class Owner:
    """One owner of the job after the other, each until it is killed."""

    def __init__(self, model: Model, budget: int | None, *, n: int = 1, stop: tuple[str, ...] = ()) -> None:
        self.model = model
        sampling = SamplingParams(n=n, max_tokens=LONGEST, stop=stop, thinking_token_budget=budget)
        self.request = JobRequest(model="m", prompt=(7, 8), sampling=sampling)
        self.stream: list[Chunk] = []
        self.detours = 0
        self.own(0)

    def own(self, offset: int) -> None:
        """Take the job over with `offset` tokens in its stream."""
        kept: list[Chunk] = []
        for chunk in self.stream:
            count = min(len(chunk.token_ids), offset - sum(len(other.token_ids) for other in kept))
            if count > 0:
                reason = chunk.finish_reason if count == len(chunk.token_ids) else None
                kept.append(
                    Chunk(chunk.index, chunk.token_ids[:count], chunk.texts[:count], None, reason, chunk.format)
                )
        self.stream = kept
        claim = Claim(Keys().new_job_id(), "token", 1, "tenant", "normal", self.request, 1, None, offset, False)
        self.job = ActiveJob(claim)
        self.job.begin(
            EncodedPrompt([7, 8], self.model.form), tokenizer=self.model.tokenizer, token_bytes=lambda _: b"x"
        )
        if offset:
            self.job.restore(kept)
        self.open: list[AddRequest] = []
        if not self.job.is_over:
            self.job.pay_all()
        if not self.job.is_over:
            self.open = [self.job.engine_request(EngineSampling(1, LONGEST), deadline=None)]
        self.publish()

    def step(self) -> None:
        """One token of every sequence that is open."""
        for request in list(self.open):
            for given_input in list(request.sequences):
                given_input.tokens.append(self.model.at(len(given_input.tokens)))
                count = len(given_input.tokens)
                output = TokenOutput(
                    request.id, given_input.index, given_input.tokens[-1], None, "length" if count == LONGEST else None
                )
                sequence = self.job.sequences[given_input.index]
                if self.job.accept(output):
                    request.sequences.remove(given_input)
                    if sequence.finish_reason is None:
                        self.detours += 1
                        self.open.append(self.job.detour(given_input.index))
                        assert self.open[-1].sequences[0].tokens == sequence.ids
                    assert not self.job.accept(output), "what the engine was ahead with counts no more"
                elif output.finish_reason is not None:
                    request.sequences.remove(given_input)
        self.publish()

    def publish(self) -> None:
        for item in self.job.unsent():
            self.stream.append(item.chunk)
        self.job.stored = sum(len(chunk.token_ids) for chunk in self.stream)

    def finish(self) -> dict[int, tuple[list[int], str, str | None]]:
        while not self.job.is_over:
            self.step()
        found: dict[int, tuple[list[int], str, str | None]] = {}
        for chunk in self.stream:
            ids, text, _ = found.get(chunk.index, ([], "", None))
            assert (chunk.format is not None) == (not ids), "the first chunk of a sequence names its format"
            found[chunk.index] = ([*ids, *chunk.token_ids], text + chunk.text, chunk.finish_reason)
        return found


@pytest.mark.parametrize("name", THOUGHTS)
def test_the_budget_counts_the_tokens_between_the_markers(name: str) -> None:
    model = MODELS[name]
    free = Owner(model, None).finish()[0][0]
    begun = len(model.begin)
    for budget in range(len(model.encode(THOUGHTS[name][1]))):
        (ids, _, reason) = Owner(model, budget).finish()[0]
        assert ids[: begun + budget] == free[: begun + budget]
        assert tuple(ids[begun + budget :][: len(model.closing)]) == model.closing
        assert (len(ids), reason) == (LONGEST, "length")


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_does_not_end_inside_a_character(name: str) -> None:
    model = Model(name, "\N{HOT BEVERAGE}\N{GRINNING FACE} one \N{GRINNING FACE}\N{GRINNING FACE} two")
    assert len(model.encode("\N{GRINNING FACE}")) > 1
    begun = len(model.begin)
    for budget in range(1, 12):
        (ids, _, _) = Owner(model, budget).finish()[0]
        (place,) = [i for i in range(len(ids)) if tuple(ids[i : i + len(model.closing)]) == model.closing][:1]
        assert 0 <= place - begun - budget < 4
        assert "\ufffd" not in model.tokenizer.decode(ids[begun:place])


def test_bytes_that_never_make_a_character_are_no_way_to_think_on() -> None:
    budget = MODELS["hermes"].form.budget(2)
    assert budget is not None
    budget.take("<think>")
    for _ in range(6):
        assert not budget.owed
        budget.take("")
    assert budget.owed


@given(
    name=st.sampled_from(sorted(THOUGHTS)),
    budget=st.integers(0, 8),
    n=st.integers(1, 3),
    stop=st.sampled_from([(), ("so on",), ("</thi",), ("think>and",), ("two th",)]),
    kills=st.lists(st.tuples(st.integers(0, 25), st.floats(0, 1)), max_size=4),
)
def test_a_takeover_anywhere_changes_nothing(
    name: str, budget: int, n: int, stop: tuple[str, ...], kills: list[tuple[int, float]]
) -> None:
    undisturbed = Owner(MODELS[name], budget, n=n, stop=stop).finish()
    disturbed = Owner(MODELS[name], budget, n=n, stop=stop)
    for steps, part in kills:
        for _ in range(steps):
            if not disturbed.job.is_over:
                disturbed.step()
        if disturbed.job.is_over:
            break
        disturbed.own(round(part * disturbed.job.stored))
    assert disturbed.finish() == undisturbed


def test_a_sequence_takes_one_detour() -> None:
    owner = Owner(MODELS["hermes"], 3, n=2)
    owner.finish()
    assert owner.detours == 2
    assert owner.job.engine_ids == [owner.job.request_id, f"{owner.job.request_id}~1", f"{owner.job.request_id}~2"]


def test_without_a_format_there_is_nothing_to_close() -> None:
    model = MODELS["hermes"]
    assert AnswerForm().budget(3) is None
    assert model.form.budget(None) is None
