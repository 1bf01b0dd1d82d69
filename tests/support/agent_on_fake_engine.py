"""The real agent on the fake engine. First argument: settings of the fake, then the flags of `octavo worker`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from octavo.terms.logs import configure_logging
from octavo_worker.agent.failures import WorkerFailed
from octavo_worker.agent.supervisor import serve
from octavo_worker.assembly.settings import WorkerSettings


def main() -> None:
    fake, *flags = sys.argv[1:]
    given = (flag.removeprefix("--").split("=", 1) for flag in flags)
    options = WorkerSettings(**{name.replace("-", "_"): value for name, value in given}).options()
    configure_logging("octavo_worker", "debug")
    engine_options = msgspec.structs.replace(
        options.engine,
        model=f"fake:vocab_size=2048,{fake}",
        max_running=min(64, options.engine.max_running),
        token_budget=512,
        max_model_len=options.engine.max_model_len or 1024,
    )
    engine = str(Path(__file__).parent / "fake_engine.py")
    try:
        asyncio.run(serve(options, engine_command=[sys.executable, engine, "--options", engine_options.to_json()]))
    except WorkerFailed as failure:
        sys.exit(f"octavo worker: {failure}")


main()
