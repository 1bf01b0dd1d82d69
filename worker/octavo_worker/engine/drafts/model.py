"""Drafts that the runner guesses: its draft model knows tokens, tables and options of the step by itself."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_worker.contract.step import UNKNOWN


class ModelProposer:
    """A smaller model. Good for any text, at the price of its passes."""

    def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> ModelDrafter:
        """One drafter is as good as another: what the model has of a sequence is in the sequence's own blocks."""
        return ModelDrafter()


class ModelDrafter:
    """Asks for drafts instead of guessing them."""

    __slots__ = ()

    def append(self, tokens: Sequence[int]) -> None:
        """The runner is told with the step."""

    def propose(self, most: int) -> Sequence[int]:
        return (UNKNOWN,) * most

    def fork(self) -> ModelDrafter:
        return self

    def close(self) -> None:
        """Nothing outlives the sequence."""
