"""Tests that are never to be collected: `tests/house/test_guardian.py` runs them to end them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from waiting import eventually

CHILD = """
import subprocess, sys, time
from pathlib import Path
if sys.argv[2] == "0":
    Path(sys.argv[1]).write_text("there")
else:
    subprocess.Popen([sys.executable, "-c", sys.argv[3], sys.argv[1], "0", ""], start_new_session=True)
time.sleep(600)
"""


def test_that_waits_beside_its_processes() -> None:
    """A process in a session of its own, and another that this one starts in yet another."""
    there = Path(os.environ["THERE"])
    subprocess.Popen([sys.executable, "-c", CHILD, str(there), "1", CHILD], start_new_session=True)
    eventually(there.exists)
    threading.Event().wait()


def test_that_no_exception_reaches() -> None:
    """An exception in the first wait only leads to the second."""
    never = threading.Event()
    thread = threading.Thread(target=never.wait)
    thread.start()
    while True:
        try:
            never.wait()
        except BaseException:
            continue
