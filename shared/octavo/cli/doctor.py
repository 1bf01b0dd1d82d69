"""`octavo doctor`: what this machine has, what is missing, and the next step."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import redis
import typer
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from rich.markup import escape

from octavo.cli.console import AsJson, RedisUrl, print_json
from octavo.cli.weights import Refusal, inspect, products_table, summary
from octavo.queue import local
from octavo.queue.address import CLUSTER, parse_address, shown
from octavo.queue.connection import connect_sync, default_url, refusal
from octavo.queue.fleet import describe_mix, mixed_models
from octavo.queue.roles import lacking
from octavo.service.console import out
from octavo.service.fleet import live_workers
from octavo.terms.errors import OctavoError
from octavo.terms.workers import WorkerInfo

_LEAST_SERVER = (7, 0)
_FEW = 4
_PROBE = 4096
_ROOM = "make room there, or start with another: octavo up --data-dir FOLDER"
_ELSEWHERE = "octavo up   (or set REDIS_URL to a running server)"
_LEAST_DISK_GB, _FULL_DISK_GB = 2, 0.1
_MARKS = {"ok": "[green]ok[/]", "warning": "[yellow] ?[/]", "error": "[red]no[/]"}


@dataclass(frozen=True)
class Finding:
    """One check. `state`: ok, warning (something optional is missing) or error."""

    name: str
    state: str
    found: str
    next_step: str = ""


def doctor(
    redis_url: RedisUrl = None,
    model: Annotated[
        str | None, typer.Option(help="Say of this model's folder how its weights are stored and computed with here.")
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(help="With --model: as a worker with this --quantization would store them.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help=r"Folder that `octavo up` has its data in. \[default: the state directory]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine; say for each problem what to do next. Exit code 1 if something must be repaired."""
    found, inspection = _weights(model, quantization) if model is not None else (None, None)
    findings = [
        _python(),
        *_guard("torch", _torch),
        *_guard("kernels", _kernels),
        *_redis(redis_url or default_url()),
        *_workers(redis_url or default_url()),
        _model(model or "demo"),
        *([found] if found else []),
        _disk(data_dir),
    ]
    if as_json:
        weights = {} if inspection is None else {"weights": inspection}
        print_json({"findings": [asdict(finding) for finding in findings], **weights})
    else:
        for finding in findings:
            out.print(f"{_MARKS[finding.state]} {finding.name:<8} {escape(finding.found)}")
            if finding.next_step:
                out.print(f"            next: {escape(finding.next_step)}")
        if inspection is not None and inspection["products"]:
            out.print()
            out.print(products_table(inspection["products"]), soft_wrap=False)
    if any(finding.state == "error" for finding in findings):
        raise typer.Exit(1)


def _guard(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """A package that is there but does not load is a finding, not a crash."""
    try:
        return check()
    except (ImportError, OSError) as error:
        return [Finding(name, "error", f"does not load: {error}", "reinstall it: pip install 'octavo[worker]'")]


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _torch() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        step = "only workers need it: pip install 'octavo[worker]'"
        return [Finding("torch", "warning", "not installed", step)]
    torch = importlib.import_module("torch")  # looked at, never depended on
    findings = [Finding("torch", "ok", str(torch.__version__))]
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        findings.append(Finding("gpu", "ok", names))
    elif shutil.which("nvidia-smi"):
        step = "this torch has no CUDA: pip install --force-reinstall torch (the CUDA build)"
        findings.append(Finding("gpu", "error", "there is one, torch cannot use it", step))
    else:
        findings.append(Finding("gpu", "ok", "none; models run on the CPU"))
    return findings


def _kernels() -> list[Finding]:
    if importlib.util.find_spec("octavo_kernels") is None:
        step = "only workers need them: pip install ./kernels (needs a C++ compiler and Python.h)"
        return [Finding("kernels", "warning", "not installed", step)]
    level = importlib.import_module("octavo_kernels._cpu").level()
    return [Finding("kernels", "ok", f"built; CPU instructions in use: {level}"), *_kernels_for_amd()]


def _kernels_for_amd() -> list[Finding]:
    """Findings on a build of the GPU kernels for AMD."""
    try:
        module = importlib.import_module("octavo_kernels._cuda")
    except ImportError:  # built without
        return []
    if module.built_for != "AMD":
        return []
    step = "compare its answers with those of --device cpu first; kernels/README.md says what was run"
    return [Finding("kernels", "warning", "builds for AMD, untested on a card", step)]


def _redis(url: str) -> list[Finding]:
    try:
        with connect_sync(url) as connection:
            server = dict(connection.info("server", "persistence", "memory", "replication", "cluster"))
            if server.get("loading"):
                step = "wait; services and workers go on by themselves"
                return [Finding("redis", "warning", f"{_named(server, url)} is still loading what it holds", step)]
            if (unfit := _unfit(server, url)) is not None:
                return [unfit]
            return [Finding("redis", "ok", _named(server, url)), _safety(server), _rights(connection)]
    except OctavoError as error:
        return [Finding("redis", "error", str(error), _ELSEWHERE)]
    except (ResponseError, AuthenticationError) as error:
        return [Finding("redis", "error", refusal(url, error), _ELSEWHERE)]
    except RedisError as error:
        return [Finding("redis", "error", f"{shown(url)} cannot be reached ({type(error).__name__})", _ELSEWHERE)]


def _named(server: dict[str, Any], url: str) -> str:
    name = "valkey" if "valkey_version" in server else "redis"
    return f"{name} {server.get('valkey_version') or server['redis_version']} at {shown(url)}"


def _unfit(server: dict[str, Any], url: str) -> Finding | None:
    """Why no queue can live on this server, by its INFO."""
    found, kind = _named(server, url), parse_address(url).kind
    compatible = tuple(int(part) for part in str(server["redis_version"]).split(".")[:2])
    if compatible < _LEAST_SERVER:
        return Finding("redis", "error", found, "octavo needs Redis 7.0 or newer, or Valkey")
    if server.get("redis_mode", server.get("server_mode")) == "sentinel":
        step = "write redis+sentinel://host:port/service"
        return Finding("redis", "error", f"{found} is a Sentinel", step)
    if server.get("cluster_enabled") and kind != CLUSTER:
        step = "write redis+cluster:// in its address"
        return Finding("redis", "error", f"{found} is one node of a cluster", step)
    if server.get("role") not in ("master", "primary"):
        step = "give the address of its primary, or of the Sentinels: redis+sentinel://host:port/service"
        return Finding("redis", "error", f"{found} is a replica and takes no jobs", step)
    return None


def _rights(connection: redis.Redis) -> Finding:
    """Rights of the address's user, found by trying them."""
    missing = lacking(connection)
    fit = [role for role, commands in missing.items() if not commands]
    if len(fit) == len(missing):
        return Finding("rights", "ok", "the user of the address may do what every role needs")
    lacks = "; ".join(f"{role} lacks {_few(names)}" for role, names in missing.items() if names)
    found = f"the user of the address may act as {', '.join(fit) or 'nothing'}; {lacks}"
    return Finding("rights", "warning" if fit else "error", found, "docs/protocol.md has a rule for each role")


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]).lower() + more


def _safety(server: dict[str, Any]) -> Finding:
    """Durability of the server, by its INFO."""
    if not server.get("aof_enabled"):
        return Finding("safety", "warning", "all jobs are gone when the server's process ends", "set appendonly yes")
    if server.get("aof_last_write_status", "ok") != "ok":
        found = "the server could not write its last change down, and takes no jobs: its disk may be full"
        return Finding("safety", "error", found, "make room on the server's disk; it goes on by itself")
    if (policy := server.get("maxmemory_policy")) != "noeviction":
        found = f"the server drops jobs when its memory is full ({policy})"
        return Finding("safety", "warning", found, "set maxmemory-policy noeviction")
    return Finding("safety", "ok", "the server writes jobs down, and drops none when its memory is full")


def _workers(url: str) -> list[Finding]:
    try:
        found = asyncio.run(live_workers(url))
    except (OctavoError, RedisError):
        return []  # that of the server says why
    mixed = [describe_mix(*mix) for mix in mixed_models(found).items()]
    step = (
        "give them the same --device, --dtype, --quantization and --kv-dtype; OCTAVO_CPU_LEVEL takes a lower "
        "instruction set"
    )
    return [Finding("workers", "warning", mix, step) for mix in mixed] or [
        Finding("workers", "ok", f"{len(found)} live"),
        *(_windows(worker) for worker in found if worker.stats.total_windows),
        *(_slots(worker) for worker in found if worker.stats.total_states),
    ]


def _windows(worker: WorkerInfo) -> Finding:
    stats = worker.stats
    text = f"{worker.id}: {stats.total_blocks} blocks of layers that see all: {_uses(stats.blocks())}; "
    return Finding("windows", "ok", f"{text}{stats.total_windows} of layers with a window: {_uses(stats.windows())}")


def _uses(counts: dict[str, int]) -> str:
    left_out = "host", "cold"
    return ", ".join(f"{count} {use}" for use, count in counts.items() if count and not use.startswith(left_out))


def _slots(worker: WorkerInfo) -> Finding:
    stats = worker.stats
    text = f"{worker.id}: {stats.total_states} slots for states: {_uses(stats.states())}"
    if stats.most_rows(stats.max_running) > 1:
        return Finding("states", "ok", text)
    return Finding("states", "warning", text, "one sequence runs at a time: raise --kv-memory, or unpin prefixes")


def _model(model: str) -> Finding:
    folder = Path(model)
    if model == "demo":
        spec = importlib.util.find_spec("octavo_worker")
        if spec is None or spec.origin is None:
            return Finding("model", "warning", "the bundled model comes with workers", "pip install 'octavo[worker]'")
        folder = Path(spec.origin).parent / "bundled" / "demo"
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        try:
            cache = _kv_dtype(folder / "config.json")
        except ValueError:
            return Finding("model", "error", f"{folder / 'config.json'} is not JSON", "download the model again")
        return Finding("model", "ok", f"{model}: {size / 1e6:.1f} MB in {folder}, KV cache in {cache}")
    if folder.exists():
        return Finding("model", "error", f"{folder} has no config.json with *.safetensors", "give a model's folder")
    return Finding("model", "warning", f"{model} is not a folder here", "a worker will look for it on the hub")


def _weights(model: str, quantization: str | None) -> tuple[Finding | None, dict[str, Any] | None]:
    """How the weights of a model that is here are stored and computed with, in a line and in full."""
    if model != "demo" and not Path(model).expanduser().exists():
        return None, None
    if any(importlib.util.find_spec(name) is None for name in ("octavo_worker", "torch", "octavo_kernels")):
        return Finding("weights", "warning", "only workers can look at them", "pip install 'octavo[worker]'"), None
    try:
        inspection = inspect(model, quantization)
    except Refusal as refusal:
        return Finding("weights", "error", str(refusal)), None
    return Finding("weights", *summary(inspection)), inspection


def _kv_dtype(config: Path) -> str:
    """The KV cache's type that a worker with this environment would take. Raises ValueError for a config that is no
    JSON."""
    described = json.loads(config.read_bytes())
    for name in (os.environ.get("OCTAVO_KV_DTYPE"), os.environ.get("OCTAVO_DTYPE")):
        if name and name != "auto":
            return name
    return str(described.get("dtype") or described.get("torch_dtype") or "float32")


def _disk(data_dir: Path | None) -> Finding:
    """Room for the data of the server that `octavo up` starts, tried by writing there."""
    try:
        folder = data_dir or local.state_dir() / "server"
    except OctavoError as error:
        return Finding("disk", "error", "no folder for the server's data", str(error))
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9 if folder.exists() else 0
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    found = f"{free:.1f} GB free at {folder}{f', {held:.1f} GB of jobs' if held else ''}"
    if free < _FULL_DISK_GB:
        return Finding("disk", "error", f"the data folder is full: {found}", _ROOM)
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * _PROBE)
    except OSError as error:
        return Finding("disk", "error", f"the data folder cannot be written to ({error.strerror}): {found}", _ROOM)
    if free < _LEAST_DISK_GB:
        return Finding("disk", "warning", found, "make room: the server's append-only file lies there")
    return Finding("disk", "ok", found)
