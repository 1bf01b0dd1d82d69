"""The real agent on the fake engine. First argument: settings of the fake, then the flags of `octavo worker`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from octavo_worker.agent.logs import configure_logging
from octavo_worker.agent.supervisor import WorkerFailed, serve
from octavo_worker.contract.options import ModelOptions
from octavo_worker.settings import WorkerSettings


def main() -> None:
    fake, *flags = sys.argv[1:]
    given = (flag.removeprefix("--").split("=", 1) for flag in flags)
    settings = WorkerSettings(**{name.replace("-", "_"): value for name, value in given})
    configure_logging("debug")
    options = ModelOptions(
        model=f"fake:vocab_size=2048,{fake}",
        num_blocks=settings.num_blocks,
        host_cache_bytes=round(settings.swap_memory * 2**30),
        preemption=settings.preemption,
        speculate=settings.speculate,
        speculate_most=settings.speculate_most,
        max_running=min(64, settings.max_running),
        token_budget=512,
        max_model_len=1024,
        check_integrity=settings.check_integrity,
    )
    engine = str(Path(__file__).parent / "fake_engine.py")
    try:
        asyncio.run(serve(settings, engine_command=[sys.executable, engine, "--options", options.to_json()]))
    except WorkerFailed as failure:
        sys.exit(f"octavo worker: {failure}")


main()
