"""`octavo bench`: measured figures as a table for people and as JSON with machine, versions, command and date."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from octavo.terms.logs import printable
from octavo_worker.bench.replay import RULES, arrivals_of, figures
from octavo_worker.bench.report import floor_share, median, report
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.tables import show
from octavo_worker.bench.traces import Clipped, TracedRequest, clip, read_trace, work_of
from octavo_worker.bench.workloads import CPU_LENGTHS, GPU_WORKLOADS, Work, workload
from octavo_worker.contract.files import ModelNotFound, model_folder
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine import step_log
from octavo_worker.engine.step_log import StepLog

if TYPE_CHECKING:
    from octavo_worker.bench.engine import EngineBench  # brings torch: not for `octavo --help`

bench = typer.Typer(no_args_is_help=True, help="Measure the engine alone, or the whole service.")


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Quantization(StrEnum):
    AUTO = "auto"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"


class KvDtype(StrEnum):
    AUTO = "auto"
    INT8 = "int8"
    FP8 = "fp8"


_console = Console(stderr=True)

Model = Annotated[
    str, typer.Option(help=f"A model folder, or one of the shapes {', '.join(SHAPES)} with random weights.")
]
Workloads = Annotated[str, typer.Option(help="Comma-separated names; the default is all of the family.")]
Family = Annotated[str, typer.Option(help="cpu: small sets for a few cores; gpu: the published peer's sets.")]
Rounds = Annotated[int, typer.Option(min=1, help="Counted runs of each workload; the median is reported.")]
MaxModelLen = Annotated[int, typer.Option(help="Longest sequence that must fit.")]
TokenBudget = Annotated[int | None, typer.Option(help="Most prompt tokens in one step; by default as the device.")]
OnDevice = Annotated[Device, typer.Option(help="Where the model runs.")]
InDtype = Annotated[Dtype, typer.Option(help="Type of weights and cache.")]
OfWeights = Annotated[Quantization, typer.Option(help="Weights in 8 or 4 bits, from 16; auto: as in the files.")]
CacheDtype = Annotated[KvDtype, typer.Option(help="Type of the KV cache; auto: as --dtype.")]
SwapMemory = Annotated[float, typer.Option(min=0, help="GiB of CPU memory for preempted sequences.")]
Temperature = Annotated[float, typer.Option(min=0, help="0: greedy.")]
Overlap = Annotated[bool, typer.Option(help="Launch steps one ahead where the device allows it.")]
Deterministic = Annotated[bool, typer.Option(help="On a GPU: tokens that do not depend on the batch.")]
ChromeTrace = Annotated[
    Path | None, typer.Option(help="Write the steps of the last run to this file, for Perfetto or chrome://tracing.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of the engine.")]
Out = Annotated[Path | None, typer.Option(help="Write the figures to this JSON file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")]


@contextmanager
def _options(model: str, threads: int | None, max_model_len: int | None, **more: Any) -> Iterator[ModelOptions]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = write_shape(model, Path(folder)) if model in SHAPES else model_folder(model)
        except ModelNotFound as error:
            raise typer.BadParameter(str(error), param_hint="--model") from None
        load_format = "dummy" if model in SHAPES else "auto"
        flags = {"load_format": load_format, "threads": threads, "max_model_len": max_model_len, **more}
        yield ModelOptions.of_flags(str(path), flags)


def _works(family: str, names: str, vocab_size: int, max_model_len: int) -> dict[str, list[Work]]:
    chosen = names.split(",") if names else list(CPU_LENGTHS if family == "cpu" else GPU_WORKLOADS)
    try:
        works = {name: workload(family, name, vocab_size) for name in chosen}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    for name, work in works.items():
        if (longest := max(len(w.prompt) + w.max_tokens for w in work)) > max_model_len:
            message = f"{name} has sequences of {longest} tokens, the context has {max_model_len}"
            raise typer.BadParameter(f"{message}: raise --max-model-len or choose other --workloads")
    return works


def _figure(name: str, work: list[Work], seconds: list[float]) -> dict[str, Any]:
    generated, prompt = sum(w.max_tokens for w in work), sum(len(w.prompt) for w in work)
    middle = median(seconds)
    return {
        "workload": name,
        "seconds": [round(s, 4) for s in seconds],
        "output_tokens_per_s": round(generated / middle, 1),
        "total_tokens_per_s": round((generated + prompt) / middle, 1),
    }


def _step_log(path: Path | None) -> StepLog | None:
    return None if path is None else StepLog()


def _write_steps(log: StepLog | None, path: Path | None) -> None:
    if log is not None and path is not None:
        path.write_text(json.dumps(step_log.chrome_trace(log)))


@bench.command()
def engine(
    model: Model = "demo",
    workloads: Workloads = "",
    family: Family = "cpu",
    rounds: Rounds = 3,
    threads: Threads = None,
    max_model_len: MaxModelLen = 1024,
    token_budget: TokenBudget = None,
    device: OnDevice = Device.AUTO,
    dtype: InDtype = Dtype.AUTO,
    quantization: OfWeights = Quantization.AUTO,
    kv_dtype: CacheDtype = KvDtype.AUTO,
    num_blocks: Annotated[int | None, typer.Option(min=2, help="Blocks of the KV cache, to see preemption.")] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Most sequences in the running batch.")] = 256,
    swap_memory: SwapMemory = 0.0,
    temperature: Temperature = 0.0,
    interval_ms: Annotated[float, typer.Option(min=0, help="Requests arrive this far apart; 0: all at once.")] = 0.0,
    overlap: Overlap = True,
    deterministic: Deterministic = False,
    tensor_parallel: Annotated[int, typer.Option(min=1, max=16, help="Processes that share the model.")] = 1,
    chrome_trace: ChromeTrace = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Scheduler and model alone, in this process: no queue, no text. Requests that arrive at once are of the class
    batch, so the longest goes first, and times to the first token are those of that order."""
    from octavo_worker.assembly.loading import load_runner
    from octavo_worker.bench.engine import EngineBench

    limits = {"num_blocks": num_blocks, "max_running": max_running, "swap_memory": swap_memory}
    modes: dict[str, Any] = {"device": device.value, "overlap": overlap, "deterministic": deterministic}
    modes["tensor_parallel"] = tensor_parallel
    types = {"dtype": dtype.value, "quantization": quantization.value, "kv_dtype": kv_dtype.value}
    rows, log = [], None
    with _options(model, threads, max_model_len, **limits, **modes, **types, token_budget=token_budget) as options:
        bench_engine = EngineBench(load_runner(options), options, temperature)
        for name, work in _works(family, workloads, bench_engine.vocab_size, bench_engine.max_model_len).items():
            log = _step_log(chrome_trace)
            rows.append(_measure(bench_engine, name, work, rounds, interval_ms, log))
    _write_steps(log, chrome_trace)
    document = report(
        "engine",
        rows,
        model=model,
        family=family,
        interval_ms=interval_ms,
        priority="normal" if interval_ms else "batch",
        token_budget=bench_engine.token_budget,
        ceilings=bench_engine.ceilings and bench_engine.ceilings.to_json(),
        numerics=bench_engine.numerics,
        temperature=temperature,
        **limits,
        **modes,
    )
    show(document, as_json, out)


def _measure(
    bench_engine: EngineBench, name: str, work: list[Work], rounds: int, interval_ms: float, log: StepLog | None
) -> dict[str, Any]:
    """The figures of one workload, after a warm-up. `log` takes the steps of its last run."""
    from octavo_worker.contract.messages import BATCH, NORMAL

    bench_engine.run([Work(w.prompt, min(w.max_tokens, 8)) for w in work])
    arrivals, timings = [index * interval_ms / 1e3 for index in range(len(work))], []
    priority = NORMAL if interval_ms else BATCH
    for left in track(range(rounds, 0, -1), description=name, console=_console, transient=True):
        record = log if left == 1 else None
        timings.append(bench_engine.run(work, arrivals=arrivals, priority=priority, log=record))
    middle = sorted(timings, key=lambda timing: timing.seconds)[len(timings) // 2]
    seconds = [timing.seconds for timing in timings]
    share = {} if interval_ms else floor_share(bench_engine.floor(work), seconds)
    return _figure(name, work, seconds) | share | middle.summary()


@bench.command()
def service(
    model: Model = "demo",
    workloads: Workloads = "mixed32",
    family: Family = "cpu",
    rounds: Rounds = 3,
    threads: Threads = None,
    max_model_len: MaxModelLen = 1024,
    device: OnDevice = Device.AUTO,
    dtype: InDtype = Dtype.AUTO,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """The whole service beside the engine alone, run in turns: throughput, and time to the first token over HTTP."""
    from octavo_worker.bench.compare import compare_service
    from octavo_worker.bench.service import ServiceFailed

    more = {"device": device.value, "dtype": dtype.value}
    with _options(model, threads, max_model_len, **more) as options:
        try:
            rows = compare_service(
                options, lambda vocab, context: _works(family, workloads, vocab, context), rounds, _console
            )
        except ServiceFailed as failure:
            _console.print(printable(str(failure)), markup=False, style="red")
            raise typer.Exit(1) from failure
    show(report("service", rows, model=model, family=family, device=device.value), as_json, out)


@bench.command()
def replay(
    traces: Annotated[list[Path], typer.Argument(help="CSV or JSON lines, see benchmarks/README.md.", exists=True)],
    model: Model = "demo",
    requests: Annotated[int | None, typer.Option(min=1, help="Only that many requests.")] = None,
    start: Annotated[float, typer.Option(min=0, help="Begin at this second of the trace.")] = 0.0,
    seconds: Annotated[float | None, typer.Option(min=0, help="Only so many seconds of it, in its own time.")] = None,
    speed: Annotated[float, typer.Option(min=1e-3, help="How much faster than in the trace requests arrive.")] = 1.0,
    max_model_len: Annotated[int | None, typer.Option(help="Clip to this context instead of the model's.")] = None,
    kv_tokens: Annotated[
        list[int] | None,
        typer.Option(min=16, help="Size of the KV cache, to see preemption; each of several is tried with each trace."),
    ] = None,
    swap_memory: SwapMemory = 0.0,
    token_budget: TokenBudget = None,
    threads: Threads = None,
    device: OnDevice = Device.AUTO,
    dtype: InDtype = Dtype.AUTO,
    kv_dtype: CacheDtype = KvDtype.AUTO,
    temperature: Temperature = 1.0,
    overlap: Overlap = True,
    chrome_trace: ChromeTrace = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Traces of requests in their own time against the engine alone: latencies, queueing, preemptions, prefix hits."""
    from octavo_worker.assembly.loading import load_runner
    from octavo_worker.bench.engine import EngineBench, blocks_for

    asked = [(path.name, _trace(path, requests, seconds, start)) for path in traces]
    types = {"device": device.value, "dtype": dtype.value, "kv_dtype": kv_dtype.value}
    more = {"token_budget": token_budget, "overlap": overlap, **types}
    blocks = blocks_for(max(kv_tokens), ModelOptions(model="").block_size) if kv_tokens else None
    memory = {"num_blocks": blocks, "swap_memory": swap_memory}
    rows, log = [], None
    with _options(model, threads, max_model_len, **more, **memory) as options:
        bench_engine = EngineBench(load_runner(options), options, temperature)
        context = min(bench_engine.max_model_len, *(kv_tokens or [bench_engine.kv_tokens]))
        for (name, trace), tokens in product(asked, kv_tokens or [bench_engine.kv_tokens]):
            log = _step_log(chrome_trace)
            row = _replay(bench_engine, *clip(trace, context), speed, tokens, log)
            rows.append({"workload": name, "kv_tokens": tokens} | row)
    _write_steps(log, chrome_trace)
    document = report(
        "replay",
        rows,
        rules=RULES,
        model=model,
        device=device.value,
        numerics=bench_engine.numerics,
        speed=speed,
        start=start,
        max_model_len=context,
        swap_memory=swap_memory,
        token_budget=bench_engine.token_budget,
        temperature=temperature,
        overlap=overlap,
    )
    show(document, as_json, out)


def _replay(
    bench_engine: EngineBench,
    trace: list[TracedRequest],
    clipped: Clipped,
    speed: float,
    kv_tokens: int,
    log: StepLog | None,
) -> dict[str, Any]:
    """The figures of one trace in one size of cache, after a warm-up."""
    arrivals, work = _arrivals(trace, speed), work_of(trace, bench_engine.vocab_size)
    bench_engine.run([Work(w.prompt[:64], 8) for w in work[:8]])
    return figures(bench_engine.run(work, arrivals=arrivals, kv_tokens=kv_tokens, log=log), trace, clipped)


@bench.command()
def quality(
    model: Annotated[str, typer.Argument(help="The model to judge: a folder, a hub id, or `demo`.")],
    against: Annotated[str, typer.Option(help="The model whose distributions count as the truth.")],
    quantization: OfWeights = Quantization.AUTO,
    text: Annotated[
        Path | None,
        typer.Option(help="Score the beginning of this file; by default --against samples a text.", exists=True),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to score, about.")] = 2048,
    context: Annotated[
        int, typer.Option(min=2, help="Tokens of a window: each is scored given those before it.")
    ] = 256,
    threads: Threads = None,
    device: OnDevice = Device.AUTO,
    dtype: InDtype = Dtype.AUTO,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """How far a model's next-token distributions are from another's, such as those of the same model in 16 bits: mean
    divergence, agreement on the most likely token, perplexities. One of them is loaded at a time."""
    from octavo_worker.bench.quality import Mismatch, Reference, windows_of
    from octavo_worker.model import ModelError

    more = {"device": device.value, "dtype": dtype.value}
    as_asked = {"quantization": quantization.value, **more}
    with _options(model, threads, None, **as_asked) as judged, _options(against, threads, None, **more) as trusted:
        try:
            folders = [Path(options.model) for options in (trusted, judged)]
            windows = None if text is None else windows_of(_read_text(text), folders, tokens, context)
            reference = Reference.of(trusted, windows, tokens, context)
            divergence, numerics = reference.beside(judged)
        except (Mismatch, ModelError) as error:
            _console.print(printable(str(error)), markup=False, style="red")
            raise typer.Exit(1) from error
    document = report(
        "quality",
        [{"model": model, "quantization": quantization.value} | divergence.to_json()],
        against=against,
        text="sampled by the reference" if text is None else text.name,
        context=context,
        numerics={"model": numerics, "reference": reference.numerics},
    )
    show(document, as_json, out)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read as UTF-8 text: {error}", param_hint="--text") from None


def _trace(path: Path, requests: int | None, seconds: float | None, start: float) -> list[TracedRequest]:
    try:
        found = read_trace(path, requests, seconds, start=start)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not found:
        raise typer.BadParameter(f"{path} has no requests in what was asked for")
    return found


def _arrivals(trace: list[TracedRequest], speed: float) -> list[float]:
    try:
        return arrivals_of(trace, speed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
