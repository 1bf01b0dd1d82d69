"""From the start of an engine's process to its first token.

    python benchmarks/cold_start.py [--model llama-8b] [--device cpu|cuda] [--tensor-parallel 2] [--rounds 3]
        [--out FILE.json]

The script starts the engine as a worker's agent does. The model counts as loaded when the engine says so; the first
token is that of a prompt of 128 tokens, sent right then. `--model` is a folder or a public shape with random weights,
shared by `--tensor-parallel` ranks. Every round is a row, written when it is known. The first round also pays for files
that are not in the page cache yet.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from octavo_worker.agent.child import EngineProcess
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import AddRequest, EngineSampling, Ready, SequenceInput, Shutdown, StepOutput
from octavo_worker.contract.options import ModelOptions

PROMPT = list(range(10, 138))


async def start(options: ModelOptions) -> dict[str, Any]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "octavo_worker.assembly.engine_process", "--options", options.to_json()]
    engine = await EngineProcess.start(command)
    try:
        ready = await engine.receive()
        loaded = time.perf_counter()
        assert isinstance(ready, Ready)
        engine.send(
            AddRequest(
                "first", array("I", PROMPT), [SequenceInput(0)], EngineSampling(seed=1, max_tokens=1, temperature=0)
            )
        )
        while not (isinstance(message := await engine.receive(), StepOutput) and message.tokens):
            pass
        token = time.perf_counter()
    finally:
        engine.send(Shutdown())
        await engine.ended(patience_s=10.0)
    seconds = {"loaded_s": loaded - began, "first_token_s": token - began, "loading_s": ready.load_seconds}
    return {name: round(value, 3) for name, value in seconds.items()} | {"numerics": ready.numerics}


def measure(arguments: argparse.Namespace) -> None:
    model, rows = arguments.model, []
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(model, Path(folder)) if model in SHAPES else model_folder(model)
        options = ModelOptions(
            model=str(path),
            load_format="dummy" if model in SHAPES else "auto",
            device=arguments.device,
            max_model_len=1024,
            kv_cache_bytes=1 << 30,
            tensor_parallel=arguments.tensor_parallel,
        )
        for number in range(arguments.rounds):
            rows.append({"round": number, **asyncio.run(start(options))})
            print(rows[-1], flush=True)
            if arguments.out is not None:
                told = {"model": model, "device": arguments.device, "ranks": arguments.tensor_parallel}
                write(report("cold_start", rows, **told), arguments.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help=f"a folder, demo, or one of {', '.join(SHAPES)}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks that share the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
