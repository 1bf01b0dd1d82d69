"""A further rank of a model: started by the engine with one end of a socket pair and the memory that they share."""

from __future__ import annotations

import argparse
import faulthandler
import socket
from collections.abc import Sequence

from octavo_worker.contract.lifetime import ignore_signals
from octavo_worker.contract.options import ModelOptions


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m octavo_worker.assembly.rank_process", description=__doc__)
    parser.add_argument("--rank", type=int, required=True, help="which one, from 1 on")
    parser.add_argument("--fd", type=int, required=True, help="inherited file descriptor of a connected socket")
    parser.add_argument("--memory", type=int, required=True, help="inherited file descriptor of the shared memory")
    parser.add_argument("--options", type=ModelOptions.from_json, required=True, help="ModelOptions as JSON")
    arguments = parser.parse_args(argv)
    ignore_signals()
    faulthandler.enable()
    from octavo_worker.assembly.follower import follow

    follow(socket.socket(fileno=arguments.fd), arguments.memory, arguments.rank, arguments.options)


if __name__ == "__main__":
    main()
