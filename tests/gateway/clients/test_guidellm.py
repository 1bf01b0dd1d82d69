"""guidellm: a few requests of load from its command line, whose report says what it saw."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_templates import DEMO
from waiting import STALL_S

pytestmark = pytest.mark.clients

REQUESTS, OUTPUT = 12, 24


async def benchmark(url: str, folder: Path, request_format: str, *options: str) -> dict[str, Any]:
    """The report of a run with fixed lengths. An argument of several values is JSON: a path may have a comma."""
    report = folder / "report.json"
    settings = {
        "backend": {"kind": "openai_http", "target": url, "request_format": request_format},
        "tokenizer": {"kind": "hf_auto", "model": str(DEMO)},
        "data": {"kind": "synthetic_text", "prompt_tokens": 40, "output_tokens": OUTPUT},
        "constraint": {"kind": "max_requests", "count": REQUESTS},
        "output": {"kind": "json", "path": str(report)},
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", json.dumps(value))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "guidellm", "run", "--disable-console", *words, *options),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), STALL_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()
    return json.loads(report.read_text())


@pytest.mark.parametrize("request_format", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
async def test_every_request_of_a_benchmark_succeeds(demo_url, tmp_path, request_format):
    concurrent = json.dumps({"kind": "concurrent", "streams": 4})
    report = await benchmark(demo_url, tmp_path, request_format, "--profile", concurrent)
    (run,) = report["benchmarks"]
    requests = run["requests"]
    assert (len(requests["successful"]), requests["errored"]) == (REQUESTS, [])
    for request in requests["successful"]:
        assert request["output_metrics"]["text_tokens"] == OUTPUT
        assert request["input_metrics"]["text_tokens"] >= 40
