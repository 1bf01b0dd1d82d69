"""octavo's engine beside vLLM on one GPU, in one run, with the physical floor beside every figure.

usage: python benchmarks/gpu_engine.py [--models llama-8b,...] [--workloads ...] [--resume] [--vllm-path FOLDER]
           [--engines octavo-w4a16,vllm-w4a16,octavo-fp8,vllm-fp8]

Behind a dash stands the form of the weights: `w4a16`, four bits in groups of 128, and `fp8blocks`, FP8 in blocks of
128 x 128, as a config.json states them; `fp8` or `int8`, which each engine makes of 16 bits while it loads. octavo is
compared with vLLM in the same form.

A GPU holds one engine at a time: for each model each engine starts in a process of its own, runs every workload once
shortened and then with an empty prefix cache (--rounds times if a run takes less than --short seconds, else once), and
ends. Figures are medians, beside the least and the most; the ratio is that of the medians. Weights are random, nothing
is downloaded. What is known is written after every run, so a run that is cut short loses nothing, and --resume goes on
where it ended; an engine that fails costs its own figures only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from peers.process import Peer, PeerFailed

from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import CPU_LENGTHS, GPU_WORKLOADS, workload
from octavo_worker.contract.options import ModelOptions
from octavo_worker.files import model_folder

ENGINES = ("octavo", "vllm")
FORMS = ("", "-w4a16", "-fp8", "-fp8blocks", "-int8")
STATED: dict[str, dict[str, Any]] = {
    "w4a16": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}}},
    },
    "fp8blocks": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    },
}  # fmt: skip
TEMPERATURE = 1.0
SETTINGS = ("device", "max_model_len", "gpu_memory", "swap_memory")


class Results:
    """All answers by model, engine and workload, in a file that is written whenever one is added."""

    def __init__(self, path: Path, family: str, *, resume: bool) -> None:
        self._path, self._family = path, family
        known = json.loads(path.read_text())["engines"] if resume and path.exists() else {}
        self._engines: dict[str, dict[str, Any]] = known

    def of(self, model: str, engine: str) -> dict[str, Any]:
        """What is known of an engine: its `settings`, what it says `about` itself, `runs` by workload, why it
        `failed`."""
        return self._engines.setdefault(model, {}).setdefault(engine, {"runs": {}})

    def rows(self, model: str) -> list[dict[str, Any]]:
        known = self._engines[model]
        names = dict.fromkeys(name for found in known.values() for name in found["runs"])
        rows = []
        for name in names:
            for form in FORMS:
                engines = {key: value for key, value in known.items() if key in (f"octavo{form}", f"vllm{form}")}
                if any(name in found["runs"] for found in engines.values()):
                    rows.append({"model": model + form, **self._row(name, engines)})
        return rows

    def save(self) -> None:
        rows = [row for model in self._engines for row in self.rows(model)]
        write(report("gpu-engine", rows, temperature=TEMPERATURE, engines=self._engines), self._path)

    def _row(self, name: str, known: dict[str, Any]) -> dict[str, Any]:
        """One workload: tokens a second of every engine that has a figure, beside the floor."""
        runs = {engine: found["runs"][name] for engine, found in known.items() if found["runs"].get(name)}
        taken = {engine: [run["seconds"] for run in done] for engine, done in runs.items()}
        seconds = {engine: statistics.median(times) for engine, times in taken.items()}
        tokens, unit = counted(self._family, name)
        line: dict[str, Any] = {"workload": name, "unit": unit}
        line["tokens_per_s"] = {engine: round(tokens / value, 1) for engine, value in seconds.items()}
        line["tokens_per_s_min_max"] = {
            engine: [round(tokens / edge(times), 1) for edge in (max, min)] for engine, times in taken.items()
        }
        ours = next((engine for engine in runs if engine.startswith("octavo")), None)
        peer = next((engine for engine in runs if engine.startswith("vllm")), None)
        if ours is not None:
            floor = runs[ours][-1]["floor_s"]
            if floor is not None:
                line["floor_tokens_per_s"] = round(tokens / floor, 1)
                line["share_of_floor"] = {engine: round(floor / value, 3) for engine, value in seconds.items()}
            line |= {key: [run[key] for run in runs[ours]] for key in ("idle_share", "preemptions")}
        if ours is not None and peer is not None:
            line["ratio"] = round(seconds[peer] / seconds[ours], 3)
        return line


def counted(family: str, name: str) -> tuple[int, str]:
    work = workload(family, name, vocab_size=2)
    generated, prompt = sum(w.max_tokens for w in work), sum(len(w.prompt) for w in work)
    return (prompt + generated, "total tokens/s") if name.startswith("prefill") else (generated, "output tokens/s")


def command(engine: str, model: Path, options: argparse.Namespace) -> list[str]:
    load_format = "dummy" if model.name in SHAPES else "auto"
    engine, _, form = engine.partition("-")
    if form in STATED:
        model = stated(model, form)
    if engine == "vllm":
        settings = (options.max_model_len, options.gpu_memory, options.family)
        return [
            "peers/vllm_engine.py",
            str(model),
            load_format,
            *map(str, settings),
            *([form] if form == "fp8" else []),
        ]
    chosen = ModelOptions(
        model=str(model),
        load_format=load_format,
        device=options.device,
        max_model_len=options.max_model_len,
        gpu_memory=options.gpu_memory,
        host_cache_bytes=round(options.swap_memory * 2**30),
        quantization=form if form in ("fp8", "int8") else "auto",
    )
    return ["peers/octavo_engine.py", chosen.to_json(), options.family, str(TEMPERATURE)]


def stated(model: Path, form: str) -> Path:
    """A folder beside `model` whose config states weights in this form."""
    config = json.loads((model / "config.json").read_text())
    target = model.parent / form / model.name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": STATED[form]}, indent=1))
    return target


def is_complete(runs: list[dict[str, Any]], rounds: int, short_s: float) -> bool:
    return len(runs) >= rounds or any(run["seconds"] >= short_s for run in runs)


def measure(engine: str, model: Path, options: argparse.Namespace, found: dict[str, Any], results: Results) -> None:
    """Run the workloads that `found` lacks, one engine's part of the results."""
    rounds = options.vllm_rounds if engine.startswith("vllm") else options.rounds
    runs = found["runs"]
    missing = [name for name in options.workloads if not is_complete(runs.get(name, []), rounds, options.short)]
    if not missing:
        return
    found.pop("failed", None)
    found["settings"] = {key: getattr(options, key) for key in SETTINGS}
    path = options.vllm_path if engine.startswith("vllm") else None
    try:
        with Peer(engine, command(engine, model, options), limit_s=options.limit, path=path) as peer:
            found["about"] = peer.about | {"start_s": round(peer.start_s, 2)}
            for name in missing:
                runs[name] = []
                while not is_complete(runs[name], rounds, options.short):
                    runs[name].append(peer.run(name))
                    results.save()
    except PeerFailed as error:
        found["failed"] = str(error)
        print(error, flush=True)
    results.save()


def compare(name: str, folder: Path, options: argparse.Namespace, results: Results) -> None:
    model = write_shape(name, folder) if name in SHAPES else model_folder(name)
    for engine in options.engines:
        measure(engine, model, options, results.of(model.name, engine), results)
    for line in results.rows(model.name):
        print(json.dumps(line), flush=True)


def names(text: str) -> list[str]:
    return text.split(",")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = names("qwen3-0.6b,llama-8b,llama-13b")
    parser.add_argument("--models", type=names, default=models, help="shapes or folders")
    parser.add_argument("--family", choices=["gpu", "cpu"], default="gpu", help="cpu: small workloads")
    parser.add_argument("--workloads", type=names, help="comma-separated; all of the family by default")
    parser.add_argument("--engines", type=names, default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of a short workload by octavo")
    parser.add_argument("--vllm-rounds", type=int, default=3, help="the same by vLLM")
    parser.add_argument("--short", type=float, default=3.0, help="seconds: what takes longer is run once")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds and run the rest")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--max-model-len", type=int, default=9216)
    parser.add_argument("--gpu-memory", type=float, default=0.85, help="share of the GPU's memory for either engine")
    parser.add_argument("--swap-memory", type=float, default=0.0, help="GiB of CPU memory for octavo's preempted")
    parser.add_argument("--limit", type=float, default=600, help="seconds of silence after which an engine is ended")
    parser.add_argument("--vllm-path", type=Path, help="a folder with vLLM and what it needs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "h200-engine.json")
    options = parser.parse_args()
    options.workloads = options.workloads or list(CPU_LENGTHS if options.family == "cpu" else GPU_WORKLOADS)
    return options


def main() -> None:
    options = parse()
    results = Results(options.out, options.family, resume=options.resume)
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            compare(model, Path(folder), options, results)


if __name__ == "__main__":
    main()
