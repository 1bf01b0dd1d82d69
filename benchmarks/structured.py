"""The same batch without grammars, and with one on some or all of its rows.

    python benchmarks/structured.py [--device cuda] [--models llama-8b] [--vocabulary .../tekken_240911.json]
    [--vocab-size 131072] [--batches 32 64] [--shares 0.5 1] [--tokens 128] [--rounds 5]
    [--out benchmarks/results/structured.json]

Random weights, one runner, the kinds of runs in turns; medians. `ratio` is tokens per second by those of the batch
without grammars, `mask_p99_us` the processor time of a mask, `step_masks_p99_us` the time of all of a step. The grammar
is a long array of records, so that a row runs to its limit; it is compiled before the clock runs. `--vocabulary` is a
tokenizer.json, or a tekken.json as the package mistral-common has it: a made-up one would say nothing, as its shape
decides what masks cost. The bundled model has its own. `--vocab-size` gives shapes another head than theirs.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from octavo.terms.structured import Grammar
from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.report import percentile, report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import AddRequest, EngineSampling, SequenceInput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.grammar import Compiler, Vocabulary
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.process import mask_threads, scheduler_for

PROMPT, END = 128, 2
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "score": {"type": "number"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue", "black"]}, "minItems": 1, "maxItems": 4},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps({"type": "array", "items": RECORD, "minItems": 200}))


def as_tokenizer(tekken: dict[str, Any], rows: int) -> str:
    """The first `rows` tokens of a tekken.json as a tokenizer.json: special ones, then those of bytes."""
    letters = {byte: chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    others = [byte for byte in range(256) if byte not in letters]
    letters |= {byte: chr(256 + place) for place, byte in enumerate(others)}  # as in GPT-2's vocabulary
    special = int(tekken["config"]["default_num_special_tokens"])
    entries = [entry for entry in tekken["vocab"] if special + entry["rank"] < rows]
    vocab = {
        "".join(letters[byte] for byte in base64.b64decode(entry["token_bytes"])): special + entry["rank"]
        for entry in entries
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": number, "content": f"<|special_{number}|>", "special": True, **flags} for number in range(special)]
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return json.dumps({"version": "1.0", "added_tokens": added, "model": model, "decoder": decoder})


def compiler_for(path: Path | None, rows: int, automata: int) -> Compiler:
    if path is None:
        return Compiler(Vocabulary.of_folder(model_folder("demo"), rows=rows, stop_ids=[1]), automata=automata)
    text = path.read_text(encoding="utf-8")
    if "config" in (described := json.loads(text)):
        text = as_tokenizer(described, rows)
    return Compiler(Vocabulary(text, rows=rows, stop_ids=[END]), automata=automata)


class Bench:
    """One loaded model, one compiled grammar."""

    def __init__(self, runner: ModelRunner, options: ModelOptions, compiler: Compiler, tokens: int) -> None:
        self._runner, self._options, self._compiler, self._tokens = runner, options, compiler, tokens
        self._compiler.compile(GRAMMAR)

    def run(self, batch: int, constrained: int) -> tuple[float, list[float]]:
        """Tokens a second, and the seconds of each step's masks. `constrained` rows have a grammar."""
        scheduler = scheduler_for(self._runner, self._options)
        pipeline = Pipeline(self._runner, scheduler, ahead=self._options.overlap)
        scheduler.mask_filler.log = masks = []
        for i in range(batch):
            prompt = array("I", [(37 * i + 11 * place) % 1000 + 3 for place in range(PROMPT)])
            sampling = EngineSampling(seed=i, max_tokens=self._tokens)
            matchers = [self._compiler.compile(GRAMMAR)] if i < constrained else None
            scheduler.add(AddRequest(str(i), prompt, [SequenceInput(0)], sampling), matchers)
        generated, began = 0, time.perf_counter()
        while pipeline.advance():
            output = scheduler.take_output()
            assert not output.failed, output.failed
            generated += len(output.tokens)
        seconds = time.perf_counter() - began
        assert generated == batch * self._tokens, "a row ended early"
        return generated / seconds, masks

    def masks(self) -> list[float]:
        """The processor's seconds of masks, one after the other, along random texts."""
        taken, random = [], np.random.default_rng(0)
        for _ in range(16):
            matcher = self._compiler.compile(GRAMMAR)
            row = np.zeros(matcher.words, np.int32)
            for _ in range(self._tokens):
                began = time.thread_time()
                matcher.fill(row)
                taken.append(time.thread_time() - began)
                bits = np.unpackbits(row.view(np.uint8), bitorder="little")
                matcher.accept((int(random.choice(np.flatnonzero(bits))),))
        return taken


def rows(bench: Bench, batches: list[int], shares: list[float], rounds: int) -> list[dict[str, Any]]:
    found, masks = [], bench.masks()
    for batch in batches:
        runs: dict[float, list[tuple[float, list[float]]]] = {share: [] for share in (0.0, *shares)}
        for share in runs:
            bench.run(batch, round(share * batch))  # warm-up
        for _ in range(rounds):
            for share, taken in runs.items():
                taken.append(bench.run(batch, round(share * batch)))
        without = statistics.median(speed for speed, _ in runs[0.0])
        for share, taken in runs.items():
            steps = [seconds for _, log in taken for seconds in log]
            row: dict[str, Any] = {"batch": batch, "constrained": share}
            row["tokens_per_s"] = round(statistics.median(speed for speed, _ in taken), 1)
            row["ratio"] = round(row["tokens_per_s"] / without, 3)
            for name, seconds in (("mask", masks), ("step_masks", steps)) if steps else ():
                row[f"{name}_mean_us"] = round(1e6 * statistics.mean(seconds), 1)
                row[f"{name}_p99_us"] = round(1e6 * percentile(seconds, 0.99), 1)
                row[f"{name}_max_us"] = round(1e6 * max(seconds), 1)
            print(row)
            found.append(row)
    return found


def bench_of(model: str, options: argparse.Namespace, folder: Path) -> tuple[Bench, str]:
    """And the numerics of its device."""
    is_shape = model in SHAPES
    if is_shape:
        config = write_shape(model, folder) / "config.json"
        size = {"vocab_size": options.vocab_size} if options.vocab_size else {}
        config.write_text(json.dumps(json.loads(config.read_text()) | size))
    model_options = ModelOptions(
        model=str(folder / model) if is_shape else "demo",
        load_format="dummy" if is_shape else "auto",
        device=options.device,
        max_model_len=1024,
    )
    runner = load_runner(model_options)
    compiler = compiler_for(options.vocabulary if is_shape else None, runner.vocab_size, mask_threads(runner))
    return Bench(runner, model_options, compiler, options.tokens), runner.numerics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--models", choices=[*SHAPES, "demo"], nargs="+", default=["demo"])
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.vocabulary is None and options.models != ["demo"]:
        parser.error("the bundled model has its own vocabulary, a shape needs one: give --vocabulary")
    measured = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            bench, numerics = bench_of(model, options, Path(folder))
        said = {"model": model, "device": numerics}
        measured += [said | row for row in rows(bench, options.batches, options.shares, options.rounds)]
        del bench
    if options.out is not None:
        vocabulary = options.vocabulary.name if options.vocabulary else "demo"
        write(report("structured", measured, vocabulary=vocabulary, tokens=options.tokens), options.out)


if __name__ == "__main__":
    main()
