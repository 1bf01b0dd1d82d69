"""The engine process: started by the agent with one end of a socket pair and the options of its model."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from octavo_worker.channel import EngineChannel
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.loop import EngineLoop
from octavo_worker.engine.policy import FcfsPolicy, PriorityPolicy
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.cost import CostModel, PreemptionPolicy

POLICIES = {"priority": PriorityPolicy, "fcfs": FcfsPolicy}


def serve(sock: socket.socket, load_runner: Callable[[ModelOptions], ModelRunner], options: ModelOptions) -> None:
    """Load the model and serve the agent at the other end of `sock` until it goes."""
    began = time.perf_counter()
    runner = load_runner(options)
    scheduler = scheduler_for(runner, options)
    gc.freeze()  # what the model brought stays for good: later collections need not walk it
    channel = EngineChannel(sock)
    loop = EngineLoop(channel, runner, scheduler, overlap=options.overlap, check_integrity=options.check_integrity)
    loop.run(load_seconds=time.perf_counter() - began)


def scheduler_for(runner: ModelRunner, options: ModelOptions, *, num_blocks: int | None = None) -> Scheduler:
    """A scheduler over the memory of this runner, or over its first `num_blocks` blocks."""
    return Scheduler(
        num_blocks=num_blocks or runner.num_blocks,
        block_size=runner.block_size,
        max_model_len=runner.max_model_len,
        vocab_size=runner.vocab_size,
        token_budget=runner.token_budget,
        max_running=options.max_running,
        num_host_blocks=runner.num_host_blocks,
        window=runner.window,
        reads_host=runner.reads_host,
        policy=preemption_policy(options, runner),
        scheduling=POLICIES[options.scheduling](),
        shared_reading=runner.shared_reading,
    )


def preemption_policy(options: ModelOptions, runner: ModelRunner) -> PreemptionPolicy:
    speeds = runner.speeds
    costs = None if speeds is None else CostModel(speeds.block_bytes, speeds.link, speeds.prefill)
    return PreemptionPolicy(options.preemption, costs)


def ignore_signals() -> None:
    """Leave the end to the agent: a Ctrl-C or a SIGTERM to the whole group must not cut short its orderly release of
    jobs. The engine goes when its socket closes, so it cannot outlive the agent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def wake_device(options: ModelOptions) -> None:
    """Lets the driver make its context on a GPU, and cuBLAS its own, in a thread: that takes as long as a second and
    needs no interpreter, which has seconds of imports to do meanwhile. What goes wrong there is told when the model is
    loaded. The interpreter waits for the thread at its end: a daemon that comes back to it from torch later aborts."""
    import torch

    def wake() -> None:
        with suppress(RuntimeError):
            square = torch.zeros((16, 16), dtype=torch.bfloat16, device="cuda")
            torch.mm(square, square)

    if options.device != "cpu" and torch.cuda.is_available():
        threading.Thread(target=wake, name="wake-device").start()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m octavo_worker.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited file descriptor of a connected socket")
    parser.add_argument("--options", type=ModelOptions.from_json, required=True, help="ModelOptions as JSON")
    arguments = parser.parse_args(argv)
    ignore_signals()
    faulthandler.enable()
    wake_device(arguments.options)  # brings torch: not before the arguments are known to be good
    from octavo_worker.model import load_runner

    serve(socket.socket(fileno=arguments.fd), load_runner, arguments.options)
