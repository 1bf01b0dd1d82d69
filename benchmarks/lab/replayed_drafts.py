"""A proposer that knows the answer with a given probability: what verification costs and gains, whatever guesses.

    python benchmarks/lab/replayed_drafts.py [--device cuda] [--models llama-8b] [--batches 1 8 32] [--rights 0.5 0.7 0.9 1]
    [--most 1 3 7] [--tokens 256] [--rounds 3] [--out benchmarks/results/h200-speculation.json]

Random weights of a shape, or the bundled model. A plain run says what the texts are; all timed runs say the same, and
compute every step in full. As many tokens as `--most` says are guessed in every step, whatever they cost; `chosen` are
as many as the engine chooses by its own times. Each token guessed is right with the probability `right` if those before
are. The kinds of runs take turns; medians. `ratio` is tokens a second by those without drafts, `step_ratio` the time of
a step likewise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.contract.messages import AddRequest, EngineSampling, SequenceInput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.drafts import RowTimes, Speculation, StepCosts
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.process import scheduler_for, speculation_for
from octavo_worker.engine.scheduler import Scheduler

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripted import ReplayProposer, ScriptedRunner  # which benchmarks/speculation.py has, too

PROMPT = 128
ALWAYS = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]))
"""Times by which any draft pays."""


class Bench:
    """One loaded model and its texts."""

    def __init__(self, options: ModelOptions, batch: int, tokens: int) -> None:
        self._options, self._tokens = options, tokens
        self.runner: Any = load_runner(options)
        self.prompts = [[(37 * i + 11 * place) % 1000 + 3 for place in range(PROMPT)] for i in range(batch)]
        said: dict[int, list[int]] = {seed: [] for seed in range(batch)}
        self._drive(self.runner, scheduler_for(self.runner, self._with("off")), batch, said)
        self._scripts = said

    def _with(self, speculate: str) -> ModelOptions:
        fields = {name: getattr(self._options, name) for name in self._options.__struct_fields__}
        return ModelOptions(**{**fields, "speculate": speculate})

    def run(self, batch: int, most: int | None, right: float) -> dict[str, float]:
        """`most` 0: without drafts; None: as many as the engine chooses."""
        runner = ScriptedRunner(self.runner, self._scripts)
        scheduler = scheduler_for(runner, self._with("off"))
        if most != 0:
            chosen = speculation_for(self.runner, self._options)
            assert chosen is not None
            scripts = {tuple(prompt): self._scripts[seed] for seed, prompt in enumerate(self.prompts)}
            proposer = ReplayProposer(scripts, right)
            costs, limit = (chosen.costs, chosen.most) if most is None else (ALWAYS, most)
            speculation = Speculation(proposer, costs, limit, chosen.most_samples)
            scheduler = scheduler_for(runner, self._options, speculation=speculation)
        return self._drive(runner, scheduler, batch, {})

    def _drive(self, runner: Any, scheduler: Scheduler, batch: int, said: dict[int, list[int]]) -> dict[str, float]:
        """Decodes from the first step with tokens on are timed."""
        pipeline = Pipeline(runner, scheduler)
        for seed in range(batch):
            sampling = EngineSampling(seed=seed, max_tokens=self._tokens)
            scheduler.add(AddRequest(str(seed), array("I", self.prompts[seed]), [SequenceInput(0)], sampling))
        began, before = 0.0, scheduler.stats()
        while pipeline.advance():
            output = scheduler.take_output()
            assert not output.failed, output.failed
            for token in output.tokens:
                said.setdefault(int(token.id), []).append(token.token)
            if not began and scheduler.stats().generated_tokens >= batch:
                began, before = time.perf_counter(), scheduler.stats()
        seconds, after = time.perf_counter() - began, scheduler.stats()
        made, steps = after.generated_tokens - before.generated_tokens, after.steps - before.steps
        return {
            "tokens_per_s": made / seconds,
            "step_ms": 1e3 * seconds / steps,
            "tokens_a_step": made / steps / batch,
        }


def rows(bench: Bench, arguments: argparse.Namespace, said: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    kinds = [(0, 1.0), *((most, right) for most in (*arguments.most, None) for right in arguments.rights)]
    for batch in arguments.batches:
        runs: dict[tuple[int | None, float], list[dict[str, float]]] = {kind: [] for kind in kinds}
        for turn in range(1 + arguments.rounds):
            for kind in kinds:
                measured = bench.run(batch, *kind)
                if turn:  # the first warms up
                    runs[kind].append(measured)
        plain = {name: statistics.median(run[name] for run in runs[kinds[0]]) for name in ("tokens_per_s", "step_ms")}
        for (most, right), taken in runs.items():
            row: dict[str, Any] = {**said, "batch": batch, "drafts": "chosen" if most is None else most, "right": right}
            for name, digits in (("tokens_per_s", 1), ("step_ms", 3), ("tokens_a_step", 2)):
                row[name] = round(statistics.median(run[name] for run in taken), digits)
            row["ratio"] = round(row["tokens_per_s"] / plain["tokens_per_s"], 3)
            row["step_ratio"] = round(row["step_ms"] / plain["step_ms"], 3)
            print(row, flush=True)
            found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--models", choices=[*SHAPES, "demo"], nargs="+", default=["demo"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rights", type=float, nargs="+", default=[0.5, 0.7, 0.9, 1.0])
    parser.add_argument("--most", type=int, nargs="+", default=[1, 3, 7])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    measured = []
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            is_shape = model in SHAPES
            options = ModelOptions(
                model=str(write_shape(model, Path(folder))) if is_shape else "demo",
                load_format="dummy" if is_shape else "auto",
                device=arguments.device,
                max_model_len=1024,
                speculate="ngram",  # has steps timed and room made for their rows
                speculate_most=max(arguments.most),
            )
            bench = Bench(options, max(arguments.batches), arguments.tokens)
            measured += rows(bench, arguments, {"model": model, "device": bench.runner.numerics})
            del bench
    if arguments.out is not None:
        write(report("replayed_drafts", measured, tokens=arguments.tokens), arguments.out)


if __name__ == "__main__":
    main()
