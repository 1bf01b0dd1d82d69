"""The second rank of a model as a fork of a process that knows models: it starts without their imports."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import cast

from forked import Forked, heavy_server

from octavo_worker.contract.options import ModelOptions
from octavo_worker.ranks.processes import RankProcess, Ranks


def forked_ranks(options: ModelOptions) -> Ranks:
    """Ranks of a model on two CPUs, as `Ranks.start` starts them."""
    assert (options.device, options.tensor_parallel) == ("cpu", 2)
    memory = os.memfd_create("ranks")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        places = [theirs.fileno(), memory]
        words = [
            *("-m", "octavo_worker.assembly.rank_process", "--rank", "1", "--fd", str(places[0])),
            *("--memory", str(memory), "--options", options.to_json()),
        ]
        process = Forked(heavy_server().address, words, others=places)
    return Ranks(memory, [RankProcess(1, cast(subprocess.Popen[bytes], process), ours)])
