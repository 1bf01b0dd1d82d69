"""`octavo bench`: measured figures as a table for people and as JSON with machine, versions, command and date."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from octavo_worker.bench.report import median, report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import CPU_LENGTHS, GPU_WORKLOADS, Work, workload
from octavo_worker.engine.options import ModelOptions
from octavo_worker.files import model_folder

bench = typer.Typer(no_args_is_help=True, help="Measure the engine alone, or the whole service.")


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


_console = Console(stderr=True)

Model = Annotated[
    str, typer.Option(help=f"A model folder, or one of the shapes {', '.join(SHAPES)} with random weights.")
]
Workloads = Annotated[str, typer.Option(help="Comma-separated names; the default is all of the family.")]
Family = Annotated[str, typer.Option(help="cpu: small sets for a few cores; gpu: the published peer's sets.")]
Rounds = Annotated[int, typer.Option(min=1, help="Counted runs of each workload; the median is reported.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of the engine.")]
Out = Annotated[Path | None, typer.Option(help="Write the figures to this JSON file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")]


@contextmanager
def _options(model: str, threads: int | None, max_model_len: int, **more: Any) -> Iterator[ModelOptions]:
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(model, Path(folder)) if model in SHAPES else model_folder(model)
        yield ModelOptions(
            model=str(path),
            load_format="dummy" if model in SHAPES else "auto",
            threads=threads,
            max_model_len=max_model_len,
            **more,
        )


def _works(family: str, names: str, vocab_size: int) -> dict[str, list[Work]]:
    chosen = names.split(",") if names else list(CPU_LENGTHS if family == "cpu" else GPU_WORKLOADS)
    try:
        return {name: workload(family, name, vocab_size) for name in chosen}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _figure(name: str, work: list[Work], seconds: list[float]) -> dict[str, Any]:
    generated, prompt = sum(w.max_tokens for w in work), sum(len(w.prompt) for w in work)
    middle = median(seconds)
    return {
        "workload": name,
        "seconds": [round(s, 4) for s in seconds],
        "output_tokens_per_s": round(generated / middle, 1),
        "total_tokens_per_s": round((generated + prompt) / middle, 1),
    }


def _show(document: dict[str, Any], as_json: bool, out: Path | None) -> None:
    if out is not None:
        write(document, out)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    rows = document["rows"]
    columns = [
        name
        for name in dict.fromkeys(key for row in rows for key in row)
        if name not in ("seconds", "cpu_ms_per_1000_tokens")
    ]
    table = Table(title=document["benchmark"])
    for column in columns:
        table.add_column(column.replace("_", " "), justify="left" if column == "workload" else "right")
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    Console().print(table)


@bench.command()
def engine(
    model: Model = "demo",
    workloads: Workloads = "",
    family: Family = "cpu",
    rounds: Rounds = 3,
    threads: Threads = None,
    max_model_len: Annotated[int, typer.Option(help="Longest sequence that must fit.")] = 1024,
    token_budget: Annotated[int | None, typer.Option(help="Most tokens in one step; by default as the device.")] = None,
    device: Annotated[Device, typer.Option(help="Where the model runs.")] = Device.AUTO,
    swap_memory: Annotated[float, typer.Option(min=0, help="GiB of CPU memory for preempted sequences.")] = 0.0,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    interval_ms: Annotated[float, typer.Option(min=0, help="Requests arrive this far apart; 0: all at once.")] = 0.0,
    overlap: Annotated[bool, typer.Option(help="Launch steps one ahead where the device allows it.")] = True,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Scheduler and model alone, in this process: no queue, no text."""
    from octavo_worker.bench.engine import EngineBench
    from octavo_worker.model import load_runner

    rows = []
    more = {
        "token_budget": token_budget,
        "overlap": overlap,
        "device": device.value,
        "host_cache_bytes": round(swap_memory * 2**30),
    }
    with _options(model, threads, max_model_len, **more) as options:
        bench_engine = EngineBench(load_runner(options), options, temperature)
        for name, work in _works(family, workloads, bench_engine.vocab_size).items():
            bench_engine.run([Work(w.prompt, min(w.max_tokens, 8)) for w in work])
            timings = [
                bench_engine.run(work, interval_s=interval_ms / 1e3)
                for _ in track(range(rounds), description=name, console=_console, transient=True)
            ]
            middle = sorted(timings, key=lambda timing: timing.seconds)[len(timings) // 2]
            rows.append(_figure(name, work, [timing.seconds for timing in timings]) | middle.summary())
    _show(
        report(
            "engine",
            rows,
            model=model,
            family=family,
            interval_ms=interval_ms,
            token_budget=bench_engine.token_budget,
            device=device.value,
            swap_memory=swap_memory,
            temperature=temperature,
            overlap=overlap,
        ),
        as_json,
        out,
    )


@bench.command()
def service(
    model: Model = "demo",
    workloads: Workloads = "mixed32",
    family: Family = "cpu",
    rounds: Rounds = 3,
    threads: Threads = None,
    max_model_len: Annotated[int, typer.Option(help="Longest sequence that must fit.")] = 1024,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """The whole service beside the engine alone, run in turns: throughput, and time to the first token over HTTP."""
    from octavo_worker.bench.compare import compare_service

    with _options(model, threads, max_model_len) as options:
        rows = compare_service(options, lambda vocab: _works(family, workloads, vocab), rounds, _console)
    _show(report("service", rows, model=model, family=family), as_json, out)
