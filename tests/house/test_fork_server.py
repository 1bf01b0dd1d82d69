"""Programs of tests that are forks have the descriptors that they were given, whatever their numbers."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from forked import Forked, ForkServer

NUMBERS = range(3, 40)  # the server's own are among them
BEYOND = 100


def test_a_fork_can_use_a_descriptor_of_any_number(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nos.write(int(sys.argv[1]), sys.argv[1].encode())\n")
    server, tried = ForkServer(()), []
    pipe = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, BEYOND) for end in pipe)
    for end in pipe:
        os.close(end)
    for number in NUMBERS:
        given = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, number)  # this number, unless something has it
        if given == number:
            tried.append(number)
            fork = Forked(server.address, [str(program), str(number)], others=[number])
            assert fork.wait() == 0
            assert os.read(read, 16) == str(number).encode()
        os.close(given)
    os.close(read)
    os.close(write)
    assert tried
