"""Ranks of an exchange in processes of their own: one on each GPU, or several where there are fewer GPUs."""

from __future__ import annotations

import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

PATIENCE_S = 600
SCRIPT = Path(__file__).parent / "exchange_rank.py"


class Ranks:
    def __init__(self, count: int) -> None:
        self._connections, self._processes = [], []
        for rank in range(count):
            ours, theirs = Pipe()
            command = [sys.executable, str(SCRIPT), str(theirs.fileno()), str(rank), str(count)]
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
            theirs.close()
            self._connections.append(ours)
        handles = [self._received(rank) for rank in range(count)]
        for connection in self._connections:
            connection.send(handles)
        for rank in range(count):
            assert self._received(rank)

    def __len__(self) -> int:
        return len(self._processes)

    def ask(self, name: str, **arguments: object) -> list[Any]:
        """Answers of the ranks; all do it at once."""
        for connection in self._connections:
            connection.send((name, arguments))
        return [self._answer(rank) for rank in range(len(self._connections))]

    def ask_one(self, rank: int, name: str, **arguments: object) -> Any:
        self._connections[rank].send((name, arguments))
        return self._answer(rank)

    def kill(self, rank: int) -> None:
        self._processes[rank].send_signal(signal.SIGKILL)
        self._processes[rank].wait()

    def close(self) -> None:
        for connection, process in zip(self._connections, self._processes, strict=True):
            if process.poll() is None:
                connection.send(None)
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _answer(self, rank: int) -> Any:
        succeeded, answer = self._received(rank)
        assert succeeded, f"rank {rank}: {answer}"
        return answer

    def _received(self, rank: int) -> Any:
        """A rank that ends says why on standard error; its connection then ends, too."""
        assert self._connections[rank].poll(PATIENCE_S), f"rank {rank} does not answer"
        return self._connections[rank].recv()
