"""A draft model on a GPU: it guesses while the host goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from octavo_worker.contract.step import SequenceStep
from octavo_worker.runner.cuda.draft_passes import DraftPasses, DraftPlaces, GuessedWindow
from octavo_worker.runner.draft_model import DraftModel, Window

PASSES = 4
"""Passes that are timed together."""


class CudaDraftModel(DraftModel):
    """Leaves most drafts to the device: they are guessed between the message of a step and the step itself, and that
    says with its results what they were. Till then the step has references to `DraftPlaces`.

    What it missed of a sequence is computed before, kernel by kernel. Sequences whose logits are changed, by penalties
    or biases, before a token is drawn are guessed pass by pass: only the host knows what changes.
    """

    def use(self, passes: DraftPasses, places: DraftPlaces) -> None:
        """`places` are the runner's. Called once, before anything else."""
        self._passes, self._places = passes, places
        self._guessed: list[GuessedWindow] = []

    def warm_up(self) -> None:
        """Captures all graphs, on a stream that can be captured."""
        self._passes.warm_up()

    @property
    def guesses_now(self) -> bool:
        return bool(self._guessed)

    def guess(self) -> None:
        self._passes.guess(self._guessed)

    def fill_in(self, steps: Sequence[SequenceStep]) -> list[SequenceStep]:
        self._guessed = []
        return super().fill_in(steps)

    def _draw(self, windows: Sequence[Window], room: int) -> None:
        on_device = [window for window in windows if _is_plain(window.step)][: self._passes.most]
        chosen = {window.place for window in on_device}
        room = self._leave(on_device, room)
        super()._draw([window for window in windows if window.place not in chosen], room)

    def _leave(self, windows: Sequence[Window], room: int) -> int:
        """Leave windows to the device, once all before their last two tokens is computed. Returns what is left of the
        `room` for those."""
        parts, live = list[SequenceStep](), list[Window]()
        for window in self._in_turn(windows):
            lacking = window.step.start - 1 - self._known(window.step)
            part = self._missing(window.step, min(lacking, room)) if lacking > 0 else None
            if part is not None:
                parts.append(part)
                room -= len(part.tokens)
                lacking -= len(part.tokens)
            if lacking > 0:
                break
            live.append(window)
        if parts:
            self._compute(parts, [])
        for window in live:
            step, wanted = window.step, window.wanted
            references = self._places.references(len(self._guessed), wanted)
            self._guessed.append(GuessedWindow(window.place, wanted, _token_before(step)))
            window.take_all(references)
            self._note_parts([SequenceStep((step.tokens[0],) * (1 + wanted), step.start - 1, step.block_table)])
        return room

    @torch.inference_mode()
    def pass_seconds(self, steps: Sequence[SequenceStep]) -> float:
        self.wait()
        began = time.perf_counter()
        passes = self._passes.run_some(len(steps), PASSES)
        self.wait()
        return max((time.perf_counter() - began) / passes, 1e-9)

    def wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)


def _is_plain(step: SequenceStep) -> bool:
    """True if the draws of a window depend on temperature and filters alone. It has a token before its last."""
    spec = step.samples[0]
    is_changed = spec.penalises or spec.params.logit_bias or spec.masked
    return step.start > 0 and not is_changed and not (spec.forbidden and step.start + 1 < spec.allowed_from)


def _token_before(step: SequenceStep) -> int:
    spec, place = step.samples[0], step.start - 1
    prompt = spec.prompt
    return int(prompt[place] if place < len(prompt) else spec.output[place - len(prompt)])
