"""Batches under kills: workers, gateways, clerks and the server, and clerks that are paused beyond their lease.

    python tests/faults/batch_soak.py [--minutes 20] [--lines 10000] [--kills 0] [--seed N]

The lines are cut into five batches of two tenants; one is cancelled, one is made to expire. At the end each custom_id
is in exactly one file, no finished line was generated again, counts and usage are those of the files, and each line's
answer is that of an undisturbed run. Exit code 1 otherwise. Kills go on until all batches have ended or the minutes are
over, and until there were as many as asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from batches_under_kills import soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = soak(Path(folder), lines=asked.lines, kills=asked.kills, seconds=asked.minutes * 60, seed=asked.seed)
        faults = asyncio.run(work)
    print("\n".join(faults) or "no line lost, none twice, every answer as undisturbed", flush=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
