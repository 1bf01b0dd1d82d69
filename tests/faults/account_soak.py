"""The account of tenants under kills of workers and the server, pauses, cancels, expiries, poison and erasures.

    python tests/faults/account_soak.py [--minutes 15] [--jobs 5000] [--kills 30] [--seed N]

Twenty tenants have caps, weights and buckets. At the end the account is equal, to the token, to a recount from what
readers were told; each bucket holds what its jobs left; no cap was passed at any instant that was looked at; nothing is
parked. Exit code 1 otherwise. Trouble goes on until there were as many kills, the minutes are over, or no job is left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from accounts_under_kills import soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = soak(Path(folder), jobs=asked.jobs, kills=asked.kills, seed=asked.seed, seconds=asked.minutes * 60)
        faults = asyncio.run(work)
    print("\n".join(faults[:50]) or "the account is that of the jobs", flush=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
