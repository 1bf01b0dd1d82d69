"""Proposers of every kind, for answers that are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proposers import AnswerBook

from octavo_worker.contract.messages import AddRequest
from octavo_worker.engine.drafts import NgramProposer, Proposer, SuffixProposer

from .drive import Answers


def told(answers: Answers, requests: Iterable[AddRequest], right: float | None) -> AnswerBook:
    return AnswerBook({tuple(asked.prompt): answers.tokens[asked.id].values() for asked in requests}, right)


def proposers(chance: float) -> dict[str, Callable[[Answers, list[AddRequest]], Proposer]]:
    """By name. One is right with this probability."""
    return {
        "never right": lambda answers, requests: told(answers, requests, 0.0),
        "right by chance": lambda answers, requests: told(answers, requests, chance),
        "always right": lambda answers, requests: told(answers, requests, 1.0),
        "garbage": lambda answers, requests: told(answers, requests, None),
        "ngram": lambda *_: NgramProposer(least=1),
        "suffix": lambda *_: SuffixProposer(least=1),
    }
