"""Plants every defect of the list in a copy of this tree, one at a time, and runs the tests that are to notice it.

    python tests/defects/run.py [--only AREA] [--name WORDS] [--jobs N]

Exit code 1 if a defect is not caught, or if its tests fail without it.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from defect_list import ROOT, Defect, read_defects

_LEAST_LIMIT_S = 60
_SLACK = 3  # times as long as all of its selection takes without the defect, a test hangs
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "results", "node_modules")
_PACKAGES = ("shared", "gateway", "worker")


@dataclass
class Copy:
    """A copy of the tree, whose packages go before the installed ones, in subprocesses as well."""

    root: Path
    control: dict[tuple[str, ...], float | None] = field(default_factory=dict)
    """Seconds that a selection takes without any defect; None where it fails."""

    def __post_init__(self) -> None:
        shutil.copytree(ROOT, self.root, ignore=_LEFT_OUT, symlinks=True)

    def test(self, selection: tuple[str, ...], limit_s: int) -> tuple[int, str]:
        """Pytest's exit code, and the first test that failed."""
        command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no"]
        paths = [str(self.root / name) for name in _PACKAGES]
        with subprocess.Popen(
            [*command, f"--timeout={limit_s}", *selection],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=2 * limit_s)
            except subprocess.TimeoutExpired:  # a thread that waits for ever outlives the limit of its test
                os.killpg(process.pid, signal.SIGKILL)
                return 1, "a test that hangs"
        failed = [line.split(" ")[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return process.returncode, failed[0] if failed else output[-300:].strip()

    def control_s(self, selection: tuple[str, ...]) -> float | None:
        if selection not in self.control:
            began = time.monotonic()
            code, _ = self.test(selection, 3600)
            self.control[selection] = None if code else time.monotonic() - began
        return self.control[selection]

    def verdict(self, defect: Defect) -> str:
        """Plant a defect, and take it out again."""
        if (control_s := self.control_s(defect.selection)) is None:
            return "TESTS FAIL WITHOUT IT"
        file = self.root / defect.file
        source = file.read_text(encoding="utf-8")
        file.write_text(defect.plant(source), encoding="utf-8")
        try:
            code, failed = self.test(defect.selection, max(_LEAST_LIMIT_S, round(_SLACK * control_s)))
        finally:
            file.write_text(source, encoding="utf-8")
        if code == 0:
            return "NOT CAUGHT"
        return f"caught by {failed}" if code == 1 else f"TESTS DO NOT RUN: {failed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="AREA", help="one file of the list, without its suffix")
    parser.add_argument("--name", default="", help="only defects with these words in their name")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time, each in its own copy")
    options = parser.parse_args()
    chosen = [d for d in read_defects() if options.only in (None, d.area) and options.name in d.name]
    copies: queue.Queue[Copy] = queue.Queue()

    def judge(defect: Defect) -> str:
        if defect.unchanged:
            verdict = f"changes nothing: {defect.unchanged}"
        else:
            copy = copies.get()
            try:
                verdict = copy.verdict(defect)
            finally:
                copies.put(copy)
        print(f"{defect.area}: {defect.name}: {verdict}", flush=True)
        return verdict

    with tempfile.TemporaryDirectory(prefix="octavo-defects-") as folder:
        for number in range(options.jobs):
            copies.put(Copy(Path(folder) / str(number) / "octavo"))
        with ThreadPoolExecutor(options.jobs) as pool:
            verdicts = list(pool.map(judge, chosen))
    missed = [v for v in verdicts if not v.startswith(("caught", "changes nothing"))]
    unchanged = sum(v.startswith("changes nothing") for v in verdicts)
    print(f"{len(verdicts)} planted: {len(verdicts) - unchanged - len(missed)} caught, {len(missed)} missed, "
          f"{unchanged} change nothing")  # fmt: skip
    return 1 if missed or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
