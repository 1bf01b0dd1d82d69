"""A worker's measurements of its machine, on machines whose speeds are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from octavo_worker.contract.cache import KvLayout
from octavo_worker.contract.state import StateLayout
from octavo_worker.contract.step import SequenceStep, StepPlan
from octavo_worker.contract.windows import WindowBlocks
from octavo_worker.runner import speeds
from octavo_worker.runner.speeds import measure_speeds, measure_steps


@dataclass
class Passes:
    """A draft model on the clock of its machine: ten rows cost as much as a pass, missed tokens next to none."""

    machine: Machine
    missed: int = 0

    def fill_in(self, steps: Sequence[SequenceStep]) -> None:
        if steps[0].start:
            assert self.missed == steps[0].start + 1
            self.machine.now += 1e-6 * self.missed
        self.missed = len(steps[0].tokens)

    def pass_seconds(self, steps: Sequence[SequenceStep]) -> float:
        assert all(step.wanted == 1 for step in steps)
        self.machine.now += 1e-4 + 1e-5 * len(steps)
        return 1e-4 + 1e-5 * len(steps)

    def wait(self) -> None:
        pass


@dataclass
class Machine:
    """A runner with a clock of its own: what a step, a token and a copied byte cost, in seconds."""

    step: float
    token: float
    byte: float
    token_budget: int = 2048
    now: float = 0.0
    longest: int = 0
    block_size: int = 16
    num_blocks: int = 200
    num_host_blocks: int = 50
    first_host_block: int = 200
    num_state_slots: int = 0
    state_layout: StateLayout = field(default_factory=lambda: StateLayout.of([]))
    windows: WindowBlocks | None = None
    window_layout: KvLayout | None = None
    max_model_len: int = 4096
    most_samples: int | None = None
    draft_model: Passes | None = None
    asynchronous: bool = False
    hiccup: int = -1  # the launch that takes ten times as long
    launches: int = 0

    @property
    def kv_cache(self) -> torch.Tensor:
        return torch.zeros(2, 1, 2, 1, 512, dtype=torch.bfloat16)

    def launch(self, plan: StepPlan) -> Machine:
        tokens = sum(len(sequence.tokens) for sequence in plan.sequences)
        self.longest = max(self.longest, tokens)
        self.now += 10 * self.step * (self.launches == self.hiccup)
        self.launches += 1
        copies = len(plan.swap_out) + len(plan.swap_in)
        self.now += (self.step + self.token * tokens if tokens else 0) + self.byte * copies * 2048
        return self

    def result(self) -> None:
        return None

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "machine",
    [
        Machine(step=6e-3, token=4e-6, byte=2e-11),  # a GPU: a step has its price, tokens next to none
        Machine(step=1e-4, token=5e-4, byte=1e-10),
        Machine(step=1e-4, token=2e-2, byte=1e-10),  # a large model on a few cores
    ],
    ids=["gpu", "cpu", "slow"],
)
def test_speeds_are_those_of_a_busy_machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "time", machine)
    measured = measure_speeds(machine)  # type: ignore[arg-type]
    assert measured.block_bytes == 2048
    assert measured.link == pytest.approx(1 / machine.byte)
    assert 0.5 / machine.token < measured.prefill <= 1 / machine.token
    assert machine.now < 0.5 or machine.longest == 64, "a worker's start takes no longer than that"


def test_a_small_memory_is_measured_with_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(step=1e-3, token=1e-6, byte=1e-10, num_blocks=3, num_host_blocks=2)
    monkeypatch.setattr(speeds, "time", machine)
    measured = measure_speeds(machine)  # type: ignore[arg-type]
    assert machine.longest == 32
    assert measured.prefill > 0
    assert measured.link == pytest.approx(1 / machine.byte)


@pytest.mark.parametrize("hiccup", range(-1, 40, 4))
@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_are_timed_by_their_rows(asynchronous: bool, hiccup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(step=1e-3, token=1e-5, byte=0.0, asynchronous=asynchronous, hiccup=hiccup, num_blocks=999)
    monkeypatch.setattr(speeds, "time", machine)
    measured = measure_steps(machine, 64, 7)  # type: ignore[arg-type]
    sizes = list(speeds.PADDED_ROWS if asynchronous else speeds.STEP_ROWS)
    assert measured.padded is asynchronous
    assert [rows for rows, _ in measured.plain] == [rows for rows in sizes if rows <= 64]
    assert [rows for rows, _ in measured.ragged] == sizes
    for rows, seconds in (*measured.plain, *measured.ragged):
        assert seconds == pytest.approx(1e-3 + 1e-5 * rows)
    assert machine.now < 0.5


def test_passes_of_a_draft_model_are_timed_by_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(step=1e-3, token=1e-5, byte=0.0, num_blocks=999)
    monkeypatch.setattr(speeds, "time", machine)
    assert measure_steps(machine, 64, 7).drafting is None  # type: ignore[arg-type]
    machine.draft_model = Passes(machine)
    measured = measure_steps(machine, 64, 7)  # type: ignore[arg-type]
    assert measured.drafting is not None
    assert measured.catching_up == pytest.approx(1e-6)
    assert [sequences for sequences, _ in measured.drafting] == [1, 2, 4, 8, 16, 32, 64]
    for sequences, seconds in measured.drafting:
        assert seconds == pytest.approx(1e-4 + 1e-5 * sequences)


def test_a_slow_model_is_timed_for_no_longer_than_it_takes_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(step=1e-2, token=2e-1, byte=0.0)
    monkeypatch.setattr(speeds, "time", machine)
    measured = measure_steps(machine, 64, 7)  # type: ignore[arg-type]
    assert [rows for rows, _ in measured.ragged] == [1, 8]
    assert machine.now < 5, "four steps"


def test_steps_are_no_larger_than_memory_and_runner_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    for limits in ({"num_blocks": 20}, {"most_samples": 17}, {"max_model_len": 3}):
        machine = Machine(step=1e-3, token=1e-5, byte=0.0, **limits)
        monkeypatch.setattr(speeds, "time", machine)
        measured = measure_steps(machine, 8, 7)  # type: ignore[arg-type]
        assert measured.most_samples == limits.get("most_samples")
        assert measured.ragged[-1][0] == 16
