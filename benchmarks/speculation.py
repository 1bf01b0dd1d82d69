"""The same jobs without speculation and with each way to guess: tokens a second, and what was guessed right.

    python benchmarks/speculation.py [--speculate ngram suffix draft:demo-draft] [--most 8] [--batches 1 8 32]
    [--temperatures 0 0.6 1] [--tokens 192] [--rounds 5] [--out benchmarks/results/speculation.json]

The bundled model on the engine alone, on a CPU. `prose` is free text: nothing to find but where it repeats itself, so a
draft model alone can guess it. `edit` writes a scene again that the prompt has, with other names: the bundled model
cannot copy, so it computes every step in full and says what a script has, which no draft model knows. `json` are
records by a grammar. The kinds of runs take turns; medians. `ratio` is tokens a second by those of the run without
speculation in the same turn; `tokens_a_step` counts those of a sequence; `accepted` is the share of drafts that were
right. Prompts are not timed, but what a draft model catches up of them is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from array import array
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from scripted import ScriptedRunner
from tokenizers import Tokenizer

from octavo.terms.structured import Grammar
from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.report import report, write
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import AddRequest, EngineSampling, SequenceInput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.grammar import Compiler, Vocabulary
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.process import scheduler_for

RECORD = {
    "type": "object",
    "properties": {
        "speaker": {"enum": ["ROMEO", "JULIET", "NURSE", "MERCUTIO"]},
        "line": {"type": "string", "maxLength": 40},
        "number": {"type": "integer", "minimum": 1, "maximum": 999},
        "is_aside": {"type": "boolean"},
    },
    "required": ["speaker", "line", "number", "is_aside"],
    "additionalProperties": False,
}
LINES = Grammar("json_schema", json.dumps({"type": "array", "items": RECORD, "minItems": 99}))
SCENE = """ROMEO:
But soft, what light through yonder window breaks? It is the east, and Juliet is the sun.

JULIET:
O Romeo, Romeo, wherefore art thou Romeo? Deny thy father and refuse thy name.

NURSE:
Madam, your lady mother is coming to your chamber. The day is broke, be wary, look about.

MERCUTIO:
Nay, gentle Romeo, we must have you dance. You are a lover, borrow Cupid's wings.
"""


EDITS = {"Juliet": "Helena", "Romeo": "Orlando", "moon": "sea", "chamber": "garden", "dance": "sing"}


def edited() -> str:
    text = SCENE
    for before, after in EDITS.items():
        text = text.replace(before, after)
    return text


class Bench:
    """One loaded model. A run has a scheduler of its own: nothing is known of the runs before, but in the second half
    of a run `suffix` knows the first half of its jobs."""

    def __init__(self, options: ModelOptions, tokens: int) -> None:
        self._options, self._tokens = options, tokens
        self.runner: Any = load_runner(options)
        folder = model_folder("demo")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._compiler = Compiler(Vocabulary.of_folder(folder, rows=self.runner.vocab_size, stop_ids=[1]))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def run(self, load: str, speculate: str, batch: int, temperature: float) -> dict[str, float]:
        runner, tokens = self.runner, self._tokens
        if load == "edit":
            script = self._ids(edited())
            runner, tokens = ScriptedRunner(runner, dict.fromkeys(range(batch), script)), len(script)
        scheduler = scheduler_for(runner, replace(self._options, speculate=speculate))
        pipeline = Pipeline(runner, scheduler)
        for number in range(batch):
            text = (
                f"{number}. The scene again, with other names:\n\n{SCENE}\n"
                if load == "edit"
                else f"{number}.\nDUKE:\n"
            )
            sampling = EngineSampling(seed=number, max_tokens=tokens, temperature=temperature)
            matchers = [self._compiler.compile(LINES)] if load == "json" else None
            scheduler.add(AddRequest(str(number), array("I", self._ids(text)), [SequenceInput(0)], sampling), matchers)
        said, began, steps = 0, 0.0, 0
        while pipeline.advance():
            output = scheduler.take_output()
            assert not output.failed, output.failed
            if began:
                said += len(output.tokens)
                steps += 1
            elif len(output.tokens):  # prompts are computed: they are no matter of speculation
                began = time.perf_counter()
        seconds, stats = time.perf_counter() - began, output.stats
        return {
            "tokens_per_s": said / seconds,
            "tokens_a_step": said / steps / batch,
            "drafted": stats.drafted_tokens,
            "accepted": stats.accepted_tokens,
        }


def rows(bench: Bench, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    kinds, found = ["off", *arguments.speculate], []
    cells = [(load, temperature) for load in ("prose", "json") for temperature in arguments.temperatures]
    for load, temperature in [*cells, ("edit", 0.0)]:
        for batch in arguments.batches:
            runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
            for turn in range(1 + arguments.rounds):
                for kind in kinds if turn % 2 else reversed(kinds):
                    measured = bench.run(load, kind, batch, temperature)
                    if turn:  # the first warms up
                        runs[kind].append(measured)
            without = [run["tokens_per_s"] for run in runs["off"]]
            for kind in kinds:
                speeds = [run["tokens_per_s"] for run in runs[kind]]
                row = {"load": load, "temperature": temperature, "batch": batch, "speculate": kind}
                row["tokens_per_s"] = round(statistics.median(speeds), 1)
                row["ratio"] = round(statistics.median(a / b for a, b in zip(speeds, without, strict=True)), 3)
                last = runs[kind][-1]
                row["tokens_a_step"] = round(last["tokens_a_step"], 2)
                row["accepted"] = round(last["accepted"] / last["drafted"], 3) if last["drafted"] else None
                print(row, flush=True)
                found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speculate", nargs="+", default=["ngram", "suffix", "draft:demo-draft"])
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.6, 1.0])
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    options = ModelOptions(
        model="demo",
        device="cpu",
        speculate=max(arguments.speculate, key=lambda kind: ":" in kind),
        speculate_most=arguments.most,
        max_running=64,
        threads=arguments.threads,
    )
    bench = Bench(options, arguments.tokens)
    measured = rows(bench, arguments)
    if arguments.out is not None:
        said = {"most": arguments.most, "tokens": arguments.tokens, "device": bench.runner.numerics}
        write(report("speculation", measured, **said), arguments.out)


if __name__ == "__main__":
    main()
