"""Drafts on a GPU: with `--deterministic` tokens and bits are those without; else what follows differs only where the
model hardly cares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from proposers import speculate

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import Launched, ModelRunner, StepPlan
from octavo_worker.engine.drafts import (
    ModelProposer,
    Proposer,
    RowTimes,
    Speculation,
    StepCosts,
)
from octavo_worker.engine.process import scheduler_for
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.runner.cuda.draft_model import CudaDraftModel
from octavo_worker.runner.cuda.draft_passes import GuessedWindow
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.cuda.shapes import DraftShape, PromptShape

from .drive import Answers, Engine, assert_same, request
from .guessing import proposers, told
from .test_cuda import VOCAB, options, random_model, random_requests
from .test_cuda_deterministic import MODELS

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

MOST = 7


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(MODELS[request.param], tmp_path_factory.mktemp(request.param))


def drafting(folder: Path, **more: object) -> ModelOptions:
    return options(folder, **{"deterministic": True, "speculate": "ngram", "speculate_most": MOST, **more})


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    return load_runner(drafting(folder))


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    return random_requests(96)


@pytest.fixture(scope="module")
def plain(runner: ModelRunner, requests: list[AddRequest]) -> Answers:
    return Engine(runner).run(requests)


PROPOSERS = proposers(chance=0.6)


def drafted(runner: ModelRunner, proposer: Proposer, **more: object) -> Engine:
    most = runner.most_samples  # type: ignore[attr-defined]
    return Engine(runner, speculation=speculate(proposer, MOST, most_samples=most), **more)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_no_bit_tells_of_drafts(runner: ModelRunner, requests: list[AddRequest], plain: Answers, proposer: str) -> None:
    answers = drafted(runner, PROPOSERS[proposer](plain, requests)).run(requests)
    assert answers.stats.drafted_tokens > 50
    assert_same(answers, plain)


def test_a_drafter_that_knows_all_is_never_wrong(runner: ModelRunner) -> None:
    asked = [
        request(str(i), [5 + i, 9, 30 + i], max_tokens=1 + 6 * (MOST + 1), temperature=0.9, seed=i) for i in range(8)
    ]
    plain = Engine(runner).run(asked)
    answers = drafted(runner, told(plain, asked, 1.0)).run(asked)
    assert_same(answers, plain)
    assert answers.stats.drafted_tokens == answers.stats.accepted_tokens
    assert answers.stats.steps < 12


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_changes_nothing(runner: ModelRunner, requests: list[AddRequest], plain: Answers, mode: str) -> None:
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    hosts = runner.num_host_blocks
    engine = drafted(runner, told(plain, requests, 0.7), num_blocks=60, num_host_blocks=hosts, policy=policy)
    answers = engine.run(requests)
    assert answers.stats.preemptions > 0
    assert_same(answers, plain)


def test_kernel_by_kernel_as_in_graphs(folder: Path, requests: list[AddRequest], plain: Answers) -> None:
    eager = load_runner(drafting(folder, cuda_graphs=False))
    assert_same(drafted(eager, told(plain, requests, 0.7)).run(requests), plain)


def test_few_sequences_have_room_for_many_rows(folder: Path) -> None:
    few = load_runner(drafting(folder, max_running=2))
    assert isinstance(few, CudaRunner)
    assert few.most_samples == 2 * (1 + MOST)
    asked = [request(str(i), [5 + i, 9, 30 + i], max_tokens=60, temperature=0.9, seed=i) for i in range(6)]
    plain = Engine(few, max_running=2).run(asked)
    answers = drafted(few, told(plain, asked, 0.8), max_running=2).run(asked)
    assert answers.stats.accepted_tokens > 50
    assert_same(answers, plain)


def test_all_graphs_of_drafts_alone_are_captured_at_the_start(folder: Path) -> None:
    runner = load_runner(drafting(folder))
    assert isinstance(runner, CudaRunner)
    assert runner._graphs is not None
    before = {shape for shape in runner._graphs._captured if isinstance(shape, PromptShape) and shape.drafts}
    assert before
    asked = [request(str(i), [5 + i, 9, 30 + i], max_tokens=60, seed=i) for i in range(20)]
    plain = Engine(runner).run(asked)
    drafted(runner, told(plain, asked, 0.8)).run(asked)
    after = {shape for shape in runner._graphs._captured if isinstance(shape, PromptShape) and shape.drafts}
    assert after == before or {shape.chunks for shape in after} != {shape.chunks for shape in before}


def test_steps_are_timed_and_drafts_chosen_by_the_times(runner: ModelRunner) -> None:
    seconds = runner.step_seconds
    assert seconds is not None
    assert seconds.ragged[-1][0] > 32
    assert all(0.0 < taken < 1.0 for _, taken in (*seconds.plain, *seconds.ragged))
    scheduler = scheduler_for(runner, ModelOptions(model="", speculate="suffix", speculate_most=MOST, max_running=64))
    assert scheduler._drafts is not None


def test_without_determinism_nearly_all_that_is_known_is_right(folder: Path) -> None:
    """Rows of a step with drafts are those of another kernel than rows of plain decodes: two tokens that are about as
    likely may change places, and what follows is another text."""
    runner = load_runner(drafting(folder, deterministic=False))
    asked = [request(str(i), [5 + i % 90, 9, 30 + i % 70, i], max_tokens=40, logprobs=2, seed=i) for i in range(32)]
    plain = Engine(runner).run(asked)
    answers = drafted(runner, told(plain, asked, 1.0)).run(asked)
    assert answers.stats.accepted_tokens > 0.8 * answers.stats.drafted_tokens > 0.4 * 32 * 30
    for one in asked:
        pairs = zip(answers.tokens[one.id][0], plain.tokens[one.id][0], strict=True)
        first = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if first is not None:
            best = plain.logprobs[one.id][0][first].top
            assert best[0][1] - best[1][1] < 0.2, "the two most likely tokens are not about as likely"


def test_vocabulary_is_that_of_the_tests(runner: ModelRunner) -> None:
    assert runner.vocab_size == VOCAB


FREE = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]), RowTimes([(1, 1e-9)]))


def by_model(runner: ModelRunner, **more: object) -> Engine:
    most = runner.most_samples  # type: ignore[attr-defined]
    return Engine(runner, speculation=Speculation(ModelProposer(), FREE, MOST, most), **more)


@pytest.fixture(scope="module")
def twin(folder: Path) -> ModelRunner:
    """Whose draft is its own model."""
    return load_runner(drafting(folder, speculate=f"draft:{folder}"))


@pytest.mark.parametrize("mode", ["ample", "swap", "recompute"])
def test_a_draft_that_is_the_target_is_always_right(twin: ModelRunner, requests: list[AddRequest], mode: str) -> None:
    asked, more = [one for one in requests if one.sampling.beam is None], dict[str, object]()
    if mode != "ample":
        policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
        more = {"num_blocks": 60, "num_host_blocks": twin.num_host_blocks, "policy": policy}
    plain = Engine(twin).run(asked)
    answers = by_model(twin, **more).run(asked)
    assert_same(answers, plain)
    assert (answers.stats.preemptions > 0) == (mode != "ample")
    assert answers.stats.drafted_tokens > 50
    if not twin.window:
        assert answers.stats.accepted_tokens == answers.stats.drafted_tokens


def test_the_bundled_draft_agrees_with_the_bundled_model() -> None:
    runner = load_runner(drafting(Path("demo"), speculate="draft:demo-draft"))
    for temperature in (0.0, 0.6, 1.0):
        asked = [
            request(str(i), [0, 50 + 7 * i, 199, 30 + i], max_tokens=60, temperature=temperature, seed=i)
            for i in range(12)
        ]
        plain = Engine(runner).run(asked)
        answers = by_model(runner).run(asked)
        assert_same(answers, plain)
        assert answers.stats.accepted_tokens > 0.15 * answers.stats.drafted_tokens  # of windows of seven


class Counted:
    """How many windows of a runner's steps the device guesses by itself."""

    def __init__(self, runner: CudaRunner, patch: pytest.MonkeyPatch) -> None:
        assert isinstance(runner.draft_model, CudaDraftModel)
        self.windows, passes = 0, runner.draft_model._passes
        guess = passes.guess

        def counted(windows: Sequence[GuessedWindow]) -> None:
            self.windows += len(windows)
            guess(windows)

        patch.setattr(passes, "guess", counted)


PLAIN = [
    request(str(i), [5 + i, 9, 30 + i, *range(40, 40 + 3 * i)], max_tokens=60, temperature=0.8, logprobs=1, seed=i)
    for i in range(12)
]


@pytest.mark.parametrize("graphs", [True, False])
def test_the_device_guesses_what_needs_no_host(folder: Path, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In graphs and out of them, one sequence and many, the same windows as pass by pass."""
    runner = load_runner(drafting(folder, speculate=f"draft:{folder}", cuda_graphs=graphs))
    assert isinstance(runner, CudaRunner)
    for asked in (PLAIN[:1], PLAIN):
        with monkeypatch.context() as patch:
            counted = Counted(runner, patch)
            plain, answers = Engine(runner).run(asked), by_model(runner).run(asked)
        assert_same(answers, plain)
        assert counted.windows > 5 * len(asked)
        if not runner.window:
            assert answers.stats.accepted_tokens == answers.stats.drafted_tokens


def test_passes_are_captured_at_the_start(twin: ModelRunner) -> None:
    assert isinstance(twin, CudaRunner)
    assert isinstance(twin.draft_model, CudaDraftModel)
    passes = twin.draft_model._passes
    assert passes._graphs is not None
    assert set(passes._graphs._captured) == {
        DraftShape(size, first) for size in passes._sizes for first in (True, False)
    }


def test_no_launch_waits_for_guesses(twin: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any call that reads from the device would raise."""
    by_model(twin).run(PLAIN)  # what is done once is done
    launch = type(twin).launch

    def watched(self: CudaRunner, plan: StepPlan) -> Launched:
        torch.cuda.set_sync_debug_mode("error" if plan.num_decodes == len(plan.sequences) else "default")
        try:
            return launch(self, plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with monkeypatch.context() as patch:
        patch.setattr(type(twin), "launch", watched)
        answers = by_model(twin).run(PLAIN)
    assert answers.stats.drafted_tokens > 50


def test_in_the_fast_mode_guesses_of_the_target_itself_are_nearly_all_right(folder: Path) -> None:
    runner = load_runner(drafting(folder, deterministic=False, speculate=f"draft:{folder}"))
    answers = by_model(runner).run(PLAIN)
    assert answers.stats.drafted_tokens > 200
    if not runner.window:
        assert answers.stats.accepted_tokens > 0.7 * answers.stats.drafted_tokens


def test_few_sequences_and_one_draft(folder: Path) -> None:
    """The least of all sizes."""
    runner = load_runner(drafting(folder, speculate=f"draft:{folder}", speculate_most=1, max_running=1))
    most = runner.most_samples  # type: ignore[attr-defined]
    engine = Engine(runner, max_running=1, speculation=Speculation(ModelProposer(), FREE, 1, most))
    answers = engine.run(PLAIN[:3])
    assert_same(answers, Engine(runner, max_running=1).run(PLAIN[:3]))
    assert answers.stats.drafted_tokens > 50
