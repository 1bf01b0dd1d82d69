"""A clerk of a benchmark, without webhooks: `python batch_clerk.py SERVER FOLDER RUN_LINES READY`. Runs of one line: it
takes lines as they are in the file. READY is a file that is there once it works."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from octavo.client.batches import BatchClient
from octavo.service.clerk import input_file
from octavo.service.clerk.clerk import Clerk
from octavo.service.clerk.desk import Desk
from octavo.service.storage import open_storage


async def work(url: str, folder: str, run_lines: int) -> None:
    """Until it is ended."""
    input_file.RUN_LINES = run_lines
    async with BatchClient(url) as client:
        await Clerk(Desk(client, open_storage(folder)), 15.0).run()


if __name__ == "__main__":
    Path(sys.argv[4]).touch()
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
