"""octavo's engine beside vLLM on one GPU or several, in one run, with the physical floor beside every figure.

usage: python benchmarks/gpu_engine.py [--models llama-8b,...] [--workloads ...] [--resume] [--vllm-path FOLDER]
           [--engines octavo-w4a16,vllm-w4a16,octavo-fp8,vllm-fp8,octavo@2,vllm@2]

Behind a dash stands the form of the weights: `w4a16`, four bits in groups of 128, `fp8blocks`, FP8 in blocks of
128 x 128, and `mxfp4`, gpt-oss as it is released, as a config.json states them; `fp8` or `int8`, which each engine
makes of 16 bits while it loads. Behind an @ stands the number of ranks, which is that of GPUs. octavo is compared with
vLLM in the same form on as many GPUs; `scaling` is its speed divided by that on one.

A GPU holds one engine at a time: for each model each engine starts in a process of its own, runs every workload once
shortened and then with an empty prefix cache (--rounds times if a run takes less than --short seconds, else once), and
ends. Figures are medians, beside the least and the most; the ratio is that of the medians. Weights are random, nothing
is downloaded. What is known is written after every run, so a run that is cut short loses nothing, and --resume goes on
where it ended; an engine that fails costs its own figures only: the last lines of what it wrote stand in its record as
`peer_log`, all of it in the folder FILE.logs beside the results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from peers.contender import FORMS, Contender
from peers.process import Peer, PeerFailed

from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import CPU_LENGTHS, GPU_WORKLOADS, workload
from octavo_worker.contract.files import model_folder

TEMPERATURE = 1.0
SETTINGS = ("device", "max_model_len", "gpu_memory", "swap_memory", "skew", "experts")
LAST_LINES = 40
"""Lines of a log that stand in the results."""


class Results:
    """All answers by model, engine and workload, in a file that is written whenever one is added."""

    def __init__(self, path: Path, family: str, *, resume: bool) -> None:
        self._path, self._family = path, family
        known = json.loads(path.read_text())["engines"] if resume and path.exists() else {}
        self._engines: dict[str, dict[str, Any]] = known

    def of(self, model: str, engine: str) -> dict[str, Any]:
        """Record of an engine: its `settings`, what it says `about` itself, `runs` by workload, why it `failed` and the
        end of its log then, `peer_log`."""
        return self._engines.setdefault(model, {}).setdefault(engine, {"runs": {}})

    def log(self, model: str, engine: str) -> Path:
        """Place of an engine's log, in a folder beside the file."""
        folder = self._path.with_suffix(".logs")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{model}-{engine}.log"

    def rows(self, model: str) -> list[dict[str, Any]]:
        """A row for each workload, form and number of ranks."""
        known = {Contender.of(name): found["runs"] for name, found in self._engines[model].items()}
        kinds = sorted({(FORMS.index(each.form), each.ranks) for each in known})
        rows = []
        for workload_name in dict.fromkeys(name for runs in known.values() for name in runs):
            done = {each: runs[workload_name] for each, runs in known.items() if runs.get(workload_name)}
            for form, ranks in kinds:
                same = {each: runs for each, runs in done.items() if (each.form, each.ranks) == (FORMS[form], ranks)}
                if same:
                    alone = done.get(Contender("octavo", FORMS[form], 1))
                    row = {"model": "-".join(filter(None, (model, FORMS[form]))), "ranks": ranks}
                    rows.append(row | self._row(workload_name, same, alone if ranks > 1 else None))
                    peer = self._engines[model].get(Contender("vllm", FORMS[form], ranks).name, {})
                    if "failed" in peer and "ratio" not in rows[-1]:
                        rows[-1]["peer_failed"] = peer["failed"]
        return rows

    def save(self) -> None:
        rows = [row for model in self._engines for row in self.rows(model)]
        write(report("gpu-engine", rows, temperature=TEMPERATURE, engines=self._engines), self._path)

    def _row(
        self, name: str, runs: dict[Contender, list[dict[str, Any]]], alone: list[dict[str, Any]] | None
    ) -> dict[str, Any]:
        """One workload: tokens a second of every engine that has a figure, beside the floor, and beside octavo on one
        rank."""
        taken = {each.name: [run["seconds"] for run in done] for each, done in runs.items()}
        seconds = {engine: statistics.median(times) for engine, times in taken.items()}
        tokens, unit = counted(self._family, name)
        line: dict[str, Any] = {"workload": name, "unit": unit}
        line["tokens_per_s"] = {engine: round(tokens / value, 1) for engine, value in seconds.items()}
        line["tokens_per_s_min_max"] = {
            engine: [round(tokens / edge(times), 1) for edge in (max, min)] for engine, times in taken.items()
        }
        ours = next((each for each in runs if each.is_ours), None)
        peer = next((each for each in runs if not each.is_ours), None)
        if ours is not None:
            floor = runs[ours][-1]["floor_s"]
            if floor is not None:
                line["floor_tokens_per_s"] = round(tokens / floor, 1)
                line["share_of_floor"] = {engine: round(floor / value, 3) for engine, value in seconds.items()}
            line |= {key: [run[key] for run in runs[ours]] for key in ("idle_share", "preemptions")}
        if ours is not None and peer is not None:
            line["ratio"] = round(seconds[peer.name] / seconds[ours.name], 3)
        if ours is not None and alone is not None:
            line["scaling"] = round(statistics.median(run["seconds"] for run in alone) / seconds[ours.name], 3)
        return line


def counted(family: str, name: str) -> tuple[int, str]:
    work = workload(family, name, vocab_size=2)
    generated, prompt = sum(w.max_tokens for w in work), sum(len(w.prompt) for w in work)
    return (prompt + generated, "total tokens/s") if name.startswith("prefill") else (generated, "output tokens/s")


def is_complete(runs: list[dict[str, Any]], rounds: int, short_s: float) -> bool:
    return len(runs) >= rounds or any(run["seconds"] >= short_s for run in runs)


def measure(engine: Contender, model: Path, options: argparse.Namespace, results: Results) -> None:
    """Run the workloads that the results lack of an engine, while there is time."""
    rounds = options.rounds if engine.is_ours else options.vllm_rounds
    found = results.of(model.name, engine.name)
    runs = found["runs"]
    missing = [name for name in options.workloads if not is_complete(runs.get(name, []), rounds, options.short)]
    if not missing or is_over(options):
        return
    for old in ("failed", "peer_log"):
        found.pop(old, None)
    found["settings"] = {key: getattr(options, key) for key in SETTINGS}
    path = None if engine.is_ours else options.vllm_path
    command = engine.command(model, options, TEMPERATURE)
    log = results.log(model.name, engine.name)
    try:
        with Peer(engine.name, command, limit_s=options.limit, path=path, log=log) as peer:
            found["about"] = peer.about | {"start_s": round(peer.start_s, 2)}
            for name in missing:
                if is_over(options):
                    break
                runs[name] = []
                while not is_complete(runs[name], rounds, options.short):
                    runs[name].append(peer.run(name))
                    results.save()
    except PeerFailed as error:
        found["failed"] = str(error)
        found["peer_log"] = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        print(error, f"({log})", *found["peer_log"], sep="\n", flush=True)
    else:
        log.unlink()
        with suppress(OSError):  # logs of others are there
            log.parent.rmdir()
    results.save()


def is_over(options: argparse.Namespace) -> bool:
    return time.monotonic() > options.end


def compare(name: str, folder: Path, engines: list[Contender], options: argparse.Namespace, results: Results) -> None:
    model = write_shape(name, folder) if name in SHAPES else model_folder(name)
    for engine in engines:
        measure(engine, model, options, results)
    for line in results.rows(model.name):
        print(json.dumps(line), flush=True)


def names(text: str) -> list[str]:
    return text.split(",")


def contenders(text: str) -> list[Contender]:
    try:
        return [Contender.of(name) for name in names(text)]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def flags(description: str | None) -> argparse.ArgumentParser:
    """Flags that every comparison of engines has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=["gpu", "cpu"], default="gpu", help="cpu: small workloads")
    parser.add_argument("--workloads", type=names, help="comma-separated; all of the family by default")
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of a short workload by octavo")
    parser.add_argument("--vllm-rounds", type=int, default=3, help="the same by vLLM")
    parser.add_argument("--short", type=float, default=3.0, help="seconds: what takes longer is run once")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--max-model-len", type=int, default=9216)
    parser.add_argument("--gpu-memory", type=float, default=0.85, help="share of the GPU's memory for either engine")
    parser.add_argument("--swap-memory", type=float, default=0.0, help="GiB of CPU memory for octavo's preempted")
    parser.add_argument("--skew", type=float, default=0.0, help="0.5: experts are chosen about as Zipf says")
    parser.add_argument("--experts", choices=["split", "whole"], default="split", help="what ranks have of mixtures")
    parser.add_argument("--limit", type=float, default=600, help="seconds that an engine's start or a run may take")
    parser.add_argument("--seconds", type=float, default=1e9, help="after so many, no engine and no workload is begun")
    parser.add_argument("--vllm-path", type=Path, help="a folder with vLLM and what it needs")
    return parser


def completed(options: argparse.Namespace) -> argparse.Namespace:
    """With the workloads of the family if none are named, and the time at which nothing more is begun."""
    options.workloads = options.workloads or list(CPU_LENGTHS if options.family == "cpu" else GPU_WORKLOADS)
    options.end = time.monotonic() + options.seconds
    return options


def main() -> None:
    parser = flags(__doc__)
    models = names("qwen3-0.6b,llama-8b,llama-13b")
    parser.add_argument("--models", type=names, default=models, help="shapes or folders")
    parser.add_argument("--engines", type=contenders, default=contenders("octavo,vllm"))
    parser.add_argument("--resume", action="store_true", help="keep what --out holds and run the rest")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "h200-engine.json")
    options = completed(parser.parse_args())
    results = Results(options.out, options.family, resume=options.resume)
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            compare(model, Path(folder), options.engines, options, results)


if __name__ == "__main__":
    main()
