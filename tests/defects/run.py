"""Plants every defect of the list in a copy of this tree, one at a time, and runs the tests that are to notice it.

    python tests/defects/run.py [--only AREA] [--name WORDS] [--quick] [--missing] [--write] [--jobs N]

With `--quick` the quick tier alone must notice them, but for those that name a test of the full one. With `--write` the
test that caught each is written to tests/defects/catchers.json. Exit code 1 if a defect is not caught, or if its tests
fail without it.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from defect_list import ROOT, Defect, read_catchers, read_defects, write_catchers
from guardian import HUNG

_LEAST_LIMIT_S = 60
_SLACK = 3  # times as long as all of its selection takes without the defect, a test hangs
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "results", "node_modules")
_CAUGHT = "caught by "
_PACKAGES = ("shared", "gateway", "worker", "kernels")


@dataclass
class Copy:
    """A copy of the tree, whose packages go before the installed ones, in subprocesses as well."""

    root: Path
    control: dict[tuple[str, ...], tuple[float, str]] = field(default_factory=dict)
    """Seconds that a selection takes without any defect, and what fails even so."""

    def __post_init__(self) -> None:
        shutil.copytree(ROOT, self.root, ignore=_LEFT_OUT, symlinks=True)
        for module in Path(str(find_spec("octavo_kernels._cpu").origin)).parent.glob("*.so"):  # which were compiled
            shutil.copy2(module, self.root / "kernels" / "octavo_kernels")

    def test(self, selection: tuple[str, ...], limit_s: int) -> tuple[int, str]:
        """Pytest's exit code, 1 for a test that hung, too, and the first test that failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no"]
        paths = [str(self.root / name) for name in _PACKAGES]
        done = subprocess.run(
            [*command, f"--timeout={limit_s}", *selection],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        failed = [words[1] for line in lines if (words := line.split(" - ")[0].split(" ", 1))[0] in ("FAILED", "ERROR")]
        hung = [line.removeprefix(HUNG) for line in lines if line.startswith(HUNG)]
        return 1 if hung else done.returncode, [*failed, *hung, done.stdout[-300:].strip()][0]

    def try_without(self, selection: tuple[str, ...]) -> tuple[float, str]:
        if selection not in self.control:
            began = time.monotonic()
            code, failed = self.test(selection, 3600)
            self.control[selection] = time.monotonic() - began, failed if code else ""
        return self.control[selection]

    def verdict(self, defect: Defect, tier: str) -> str:
        """Plant a defect, and take it out again."""
        selection = defect.selection(tier)
        seconds, failed = self.try_without(selection)
        if failed:
            return f"TESTS FAIL WITHOUT IT: {failed}"
        file = self.root / defect.file
        source, made = file.read_text(encoding="utf-8"), file.stat()
        file.write_text(defect.plant(source), encoding="utf-8")
        try:
            code, failed = self.test(selection, max(_LEAST_LIMIT_S, round(_SLACK * seconds)))
        finally:
            file.write_text(source, encoding="utf-8")
            os.utime(file, ns=(made.st_atime_ns, made.st_mtime_ns))  # what was compiled of it holds again
        if code == 0:
            return "NOT CAUGHT"
        return f"{_CAUGHT}{failed}" if code == 1 else f"TESTS DO NOT RUN: {failed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="AREA", help="one file of the list, without its suffix")
    parser.add_argument("--name", default="", help="only defects with these words in their name")
    parser.add_argument("--quick", action="store_true", help="by the quick tier of tests")
    parser.add_argument("--missing", action="store_true", help="only defects of which no catcher is written down")
    parser.add_argument("--write", action="store_true", help="write down which test caught each")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time, each in its own copy")
    options = parser.parse_args()
    catchers = read_catchers()
    chosen = [d for d in read_defects() if options.only in (None, d.area) and options.name in d.name]
    if options.missing:
        chosen = [d for d in chosen if not d.unchanged and d.name not in catchers.get(d.area, {})]
    copies: queue.Queue[Copy] = queue.Queue()
    writing = threading.Lock()

    def judge(defect: Defect) -> str:
        if defect.unchanged:
            verdict = f"changes nothing: {defect.unchanged}"
        else:
            copy = copies.get()
            try:
                verdict = copy.verdict(defect, "quick" if options.quick else "full")
            finally:
                copies.put(copy)
        with writing:
            if options.write and not defect.unchanged:
                catchers.setdefault(defect.area, {}).pop(defect.name, None)
                if verdict.startswith(_CAUGHT):
                    catchers[defect.area][defect.name] = verdict.removeprefix(_CAUGHT)
                write_catchers(catchers)
        print(f"{defect.area}: {defect.name}: {verdict}", flush=True)
        return verdict

    with tempfile.TemporaryDirectory(prefix="octavo-defects-") as folder:
        for number in range(options.jobs):
            copies.put(Copy(Path(folder) / str(number) / "octavo"))
        with ThreadPoolExecutor(options.jobs) as pool:
            verdicts = list(pool.map(judge, chosen))
    missed = [v for v in verdicts if not v.startswith((_CAUGHT, "changes nothing"))]
    unchanged = sum(v.startswith("changes nothing") for v in verdicts)
    print(f"{len(verdicts)} planted: {len(verdicts) - unchanged - len(missed)} caught, {len(missed)} missed, "
          f"{unchanged} change nothing")  # fmt: skip
    return 1 if missed or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
