"""How families mark their thoughts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thoughts:
    """The markers around a thought. `anywhere`: not only at the beginning of the text, since the marker is a control
    token that a text cannot merely mention."""

    begin: str
    end: str
    anywhere: bool


THINK = Thoughts("<think>", "</think>", anywhere=False)
MISTRAL = Thoughts("[THINK]", "[/THINK]", anywhere=True)
GEMMA = Thoughts("<|channel>thought", "<channel|>", anywhere=True)
