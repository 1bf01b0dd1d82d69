"""Drafts that are drawn with the noise of their positions: what is said is drawn from the target, whatever was guessed,
and as much is right as theory says."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.step import SampleRow
from octavo_worker.engine.drafts import count_accepted
from octavo_worker.runner.sampler import sample

DRAWS = 100_000
VOCABULARY = 12
PIECE = 20_000
TARGET = torch.tensor([2.0, 1.5, 1.5, 1.0, 0.5, 0.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0])
DRAFT = TARGET + torch.tensor([0.5, -1.0, 0.3, 0.0, 0.9, -0.4, 0.0, 1.2, -0.7, 0.0, 0.6, -0.2])


def draw(logits: Tensor, temperature: float) -> list[int]:
    """A token at each of `DRAWS` positions, all from the same logits."""
    tokens: list[int] = []
    params = EngineSampling(seed=3, max_tokens=1, temperature=temperature)
    for first in range(0, DRAWS, PIECE):
        rows = [SampleRow(params, 0, position) for position in range(first, first + PIECE)]
        tokens += sample(logits.expand(PIECE, -1).clone(), rows).tokens.tolist()
    return tokens


@pytest.fixture(scope="module", params=[0.7, 1.0, 1.3])
def drawn(request: pytest.FixtureRequest) -> tuple[float, list[int]]:
    return request.param, draw(TARGET, request.param)


def chi_squared(tokens: list[int], wanted: Tensor) -> float:
    counts = Counter(tokens)
    expected = len(tokens) * wanted
    return sum((counts[token] - float(share)) ** 2 / float(share) for token, share in enumerate(expected))


BOUND = 37.4  # of 11 degrees of freedom: exceeded once in ten thousand


def test_frequencies_are_those_of_the_target(drawn: tuple[float, list[int]]) -> None:
    temperature, tokens = drawn
    assert chi_squared(tokens, torch.softmax(TARGET / temperature, 0)) < BOUND


@pytest.mark.parametrize("kind", ["coupled", "most likely", "unrelated"])
def test_acceptance_is_that_of_theory_and_what_is_said_the_targets(kind: str, drawn: tuple[float, list[int]]) -> None:
    """Windows of one draft: what is accepted, or the correction, is as plain decoding would have it."""
    temperature, target = drawn
    p, q = (torch.softmax(logits / temperature, 0).double() for logits in (TARGET, DRAFT))
    if kind == "coupled":
        drafts = draw(DRAFT, temperature)
        ratios = torch.maximum(p[None] / p[:, None], q[None] / q[:, None])
        theory = float((1 / ratios.sum(1)).sum())
    elif kind == "most likely":
        drafts = [int(q.argmax())] * DRAWS
        theory = float(p[q.argmax()])
    else:
        shifted = draw(DRAFT, temperature)
        drafts = shifted[7:] + shifted[:7]  # the noise of other positions
        theory = float((p * q).sum())
    said, accepted = [], 0
    for at in range(0, DRAWS - 1, 2):
        count = count_accepted(drafts[at : at + 1], target[at : at + 2])
        accepted += count
        said += target[at : at + count + 1]
    assert accepted / (DRAWS / 2) == pytest.approx(theory, abs=0.01)
    assert chi_squared(said, p.float()) < BOUND
