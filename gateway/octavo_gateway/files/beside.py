"""The clerk beside a gateway: a process of its own, started again whenever it ends. It ends with its parent."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

from octavo.service.children import restart_delay
from octavo.service.server import die_with_parent

log = logging.getLogger(__name__)

_COMMAND = (sys.executable, "-P", "-m", "octavo.service.clerk")
_LIVED_S = 60.0  # after which an end counts as the first one again


def start_clerk() -> None:
    """Keep a clerk running for as long as this process does. Its settings are those of the environment."""
    threading.Thread(target=_keep, name="clerk", daemon=True).start()


def _keep() -> None:
    failures = 0
    while True:
        began = time.monotonic()
        # From this thread always: the kernel tells a child of the end of the thread that made it.
        child = subprocess.Popen(
            _COMMAND, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent(), start_new_session=True
        )
        code = child.wait()
        failures = 1 if time.monotonic() - began > _LIVED_S else failures + 1
        delay = restart_delay(failures)
        log.warning("the clerk ended with exit code %d; starting it again in %.0f s", code, delay)
        time.sleep(delay)
