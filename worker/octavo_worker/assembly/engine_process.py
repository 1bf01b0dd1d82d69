"""The engine process: started by the agent with one end of a socket pair and the options of its model.

Here the engine and the model meet; neither imports the other.
"""

from __future__ import annotations

import argparse
import faulthandler
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

from octavo_worker.contract.lifetime import ignore_signals
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.process import serve
from octavo_worker.ranks.processes import Ranks, die_as


def wake_device(options: ModelOptions) -> None:
    """Create the contexts of the GPU driver and of cuBLAS in a thread. That takes up to a second and needs no
    interpreter, which is busy with imports meanwhile. Errors are reported when the model is loaded. The interpreter
    waits for the thread at its end: a daemon thread that returned from torch later would abort it."""
    import torch

    def wake() -> None:
        with suppress(RuntimeError):
            square = torch.zeros((16, 16), dtype=torch.bfloat16, device="cuda")
            torch.mm(square, square)

    if options.device != "cpu" and torch.cuda.is_available():
        threading.Thread(target=wake, name="wake-device").start()


def load(options: ModelOptions) -> ModelRunner:
    """The model's runner. Its further ranks import and load while this process does, which ends as soon as one does."""
    ranks = None
    if options.tensor_parallel > 1:
        ranks = Ranks.start(options)
        ranks.watch(die_as)
    wake_device(options)  # brings torch: not before the arguments are known to be good
    from octavo_worker.assembly.loading import load_runner

    return load_runner(options, ranks)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m octavo_worker.assembly.engine_process", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited file descriptor of a connected socket")
    parser.add_argument("--options", type=ModelOptions.from_json, required=True, help="ModelOptions as JSON")
    arguments = parser.parse_args(argv)
    ignore_signals()
    faulthandler.enable()
    serve(socket.socket(fileno=arguments.fd), load, arguments.options)


if __name__ == "__main__":
    main()
