"""The engine on several GPUs beside itself on one, and beside vLLM on as many, in one run.

usage: python benchmarks/ranks_engine.py two|two-large|four [--vllm-path FOLDER] [--models llama-8b] [--seconds 560]
           [--gpu-memory 0.85] [--swap-memory 0] [--out FILE.json]

A plan is a list of models and engines as `gpu_engine.py` names them, the most telling first, for two GPUs of 80 GB, for
two of 141 GB, which hold a 70B in 16 bits, and for four. What `--out` holds already is not run again: the same command
goes on where the one before was cut short. `scaling` is octavo's speed divided by its own on one GPU, `ratio` that
divided by vLLM's on as many. A table of all figures is printed last.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gpu_engine import Results, compare, completed, contenders, flags, names

PLANS = {
    "two": [
        ("llama-8b", "octavo@2,vllm@2,octavo"),
        ("llama-70b", "octavo-w4a16@2,vllm-w4a16@2"),
        ("llama-13b", "octavo@2,vllm@2"),
        ("llama-70b", "octavo-fp8@2,vllm-fp8@2"),
        ("llama-13b", "octavo"),
        ("llama-70b", "octavo-w4a16"),
    ],
    "two-large": [
        ("llama-70b", "octavo@2,vllm@2"),
        ("llama-8b", "octavo@2,vllm@2,octavo"),
    ],
    "four": [
        ("llama-8b", "octavo@4,octavo@2,octavo"),
        ("llama-70b", "octavo-w4a16@4,octavo-w4a16@2,octavo-w4a16,octavo-fp8@4,octavo-fp8@2,octavo@4"),
        ("llama-8b", "vllm@4"),
        ("llama-70b", "vllm-w4a16@4,vllm-fp8@4,vllm@4"),
    ],
}
WORKLOADS = "single,batch32,mixed256"
COLUMNS = ("octavo", "vllm", "ratio", "scaling", "of floor")


def table(rows: list[dict[str, Any]]) -> str:
    """A line a row, with tokens a second."""
    lines = [f"{'':38}" + "".join(f"{name:>10}" for name in COLUMNS)]
    for row in rows:
        ours, peers = (figure_of(program, row["tokens_per_s"]) for program in ("octavo", "vllm"))
        share = figure_of("octavo", row.get("share_of_floor", {}))
        figures = (ours, peers, row.get("ratio"), row.get("scaling"), share)
        name = f"{row['model']} x{row['ranks']} {row['workload']}"
        lines.append(f"{name:38}" + "".join(f"{'-' if figure is None else figure:>10}" for figure in figures))
    return "\n".join(lines)


def figure_of(program: str, figures: dict[str, float]) -> float | None:
    """The figure of the program's engine, in any form and on any number of ranks."""
    return next((figure for name, figure in figures.items() if name.startswith(program)), None)


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("plan", choices=list(PLANS))
    parser.add_argument("--models", type=names, help="only these of the plan")
    parser.add_argument("--out", type=Path, help="by default results/PLAN-gpus.json")
    parser.set_defaults(workloads=names(WORKLOADS), limit=300)
    options = completed(parser.parse_args())
    plan = [each for each in PLANS[options.plan] if options.models is None or each[0] in options.models]
    out = options.out or Path(__file__).parent / "results" / f"{options.plan}-gpus.json"
    results = Results(out, options.family, resume=True)
    with tempfile.TemporaryDirectory() as folder:
        for model, engines in plan:
            compare(model, Path(folder), contenders(engines), options, results)
    print(table([row for model in dict.fromkeys(model for model, _ in plan) for row in results.rows(model)]))


if __name__ == "__main__":
    main()
