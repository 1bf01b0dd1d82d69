"""Webhooks under kills: events to receivers that answer 200, 500, 302 or 410, hang, close, or lie about their length,
while clerks and the server are killed.

    python tests/faults/webhook_soak.py [--events 2000] [--every 3] [--kills 0] [--seed N]

At the end every receiver that works has got every event of its tenant, what others did not take is known and will be
tried again, and no event came under two ids. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from webhooks_under_kills import soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between kills")
    parser.add_argument("--kills", type=int, default=0, help="how many at least")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = soak(Path(folder), events=asked.events, kill_every_s=asked.every, kills=asked.kills, seed=asked.seed)
        faults = asyncio.run(work)
    print("\n".join(faults) or "no event lost, none under two ids", flush=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
