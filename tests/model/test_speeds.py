"""What a worker measures of its machine, on machines whose speeds are known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from octavo_worker.contract.step import StepPlan
from octavo_worker.model import speeds
from octavo_worker.model.speeds import measure_speeds


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
    max_model_len: int = 4096

    @property
    def kv_cache(self) -> torch.Tensor:
        return torch.zeros(2, 1, 2, 1, 512, dtype=torch.bfloat16)

    def launch(self, plan: StepPlan) -> Machine:
        tokens = sum(len(sequence.tokens) for sequence in plan.sequences)
        self.longest = max(self.longest, tokens)
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
