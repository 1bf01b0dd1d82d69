"""An engine process on the fake model, with the command line of `python -m octavo_worker.assembly.engine_process`.

`--options` takes the usual `ModelOptions`. Its `model` may carry settings of the fake, as in
"fake:step_seconds=0.01,crash_after=20": seconds that a step takes, the step that ends the process with a traceback, a
token that aborts it (`crash_token`), a token that fails its request (`poison`), how it claims to round (`numerics`),
for how many states it has slots (`state_slots`), how many blocks layers with a window have (`window_blocks`), and how
long that is (`layer_window`).
With `refuse` it cannot load, and takes so many seconds to exit. With `script`, a file of token ids as JSON, all
sequences are those tokens, as far as a grammar allows; with `reply`, another such file, they are these where the token
`results` is in the prompt. `folder` has the vocabulary that grammars need.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from fake_runner import FakeRunner

from octavo_worker.contract.lifetime import ignore_signals
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import Launched, Sampled, SequenceStep, StepPlan
from octavo_worker.engine.process import serve


class CrashingRunner(FakeRunner):
    crash_after = 0
    crash_token = -1
    script: Sequence[int] = ()
    reply: Sequence[int] = ()
    results = -1

    def launch(self, plan: StepPlan) -> Launched:
        if any(self.crash_token in step.tokens for step in plan.sequences):
            os.abort()
        if self.crash_after and self.plans + 1 >= self.crash_after:
            raise RuntimeError("the fake model fails as it was told to")
        return super().launch(plan)

    def _sample(self, step: SequenceStep, number: int, history: list[int], barred: set[int]) -> Sampled:
        sampled = super()._sample(step, number, history, barred)
        place = len(step.output_at(number))
        script = self.reply if self.results in history else self.script
        if place < len(script) and script[place] not in barred:
            return replace(sampled, token=script[place])
        return sampled


def settings_of(options: ModelOptions) -> dict[str, str]:
    return dict(part.split("=") for part in options.model.partition(":")[2].split(",") if part)


def load_runner(options: ModelOptions) -> FakeRunner:
    settings = settings_of(options)
    if "refuse" in settings:
        atexit.register(time.sleep, float(settings["refuse"]))
        raise ValueError("the fake model refuses as it was told to")
    runner = CrashingRunner(
        options.num_blocks or 256,
        options.block_size,
        max_model_len=options.max_model_len or 4096,
        num_host_blocks=1000 if options.host_cache_bytes else 0,
        reads_host=True,
        vocab_size=int(settings.get("vocab_size", 997)),
        step_seconds=float(settings.get("step_seconds", 0.0)),
        poison=int(settings.get("poison", -1)),
        state_slots=int(settings.get("state_slots", 0)),
        window_blocks=int(settings.get("window_blocks", 0)),
        layer_window=int(settings.get("layer_window", 0)),
    )
    if "script" in settings:
        runner.script = json.loads(Path(settings["script"]).read_text())
    if "reply" in settings:
        runner.reply = json.loads(Path(settings["reply"]).read_text())
        runner.results = int(settings["results"])
    runner.crash_after = int(settings.get("crash_after", 0))
    runner.crash_token = int(settings.get("crash_token", -1))
    runner.numerics = settings.get("numerics", FakeRunner.numerics)
    return runner


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--options", type=ModelOptions.from_json, required=True)
    arguments = parser.parse_args()
    ignore_signals()
    folder = settings_of(arguments.options).get("folder", arguments.options.model)
    serve(
        socket.socket(fileno=arguments.fd),
        lambda _: load_runner(arguments.options),
        msgspec.structs.replace(arguments.options, model=folder),
    )
