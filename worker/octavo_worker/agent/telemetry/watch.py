"""Watch over the jobs of a worker."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.queue.protocol import Parting
from octavo.terms.messages import Terminal
from octavo_worker.agent.jobs import ActiveJob


class JobWatch:
    """Is told of jobs as they come, go back and end. This one does nothing with it."""

    def claimed(self, job: ActiveJob) -> None:
        """The job came from the queue."""

    def left(self, jobs: Sequence[ActiveJob], why: Parting) -> None:
        """The jobs went back to the queue, by this worker, which owned them until then."""

    def ended(self, job: ActiveJob, terminal: Terminal) -> None:
        """The job's end is stored, and is this worker's doing."""


class Watches(JobWatch):
    """Any number of watches, each of which is told everything."""

    def __init__(self) -> None:
        self._watches: list[JobWatch] = []

    def add(self, watch: JobWatch) -> None:
        """From now on this one is told, too."""
        self._watches.append(watch)

    def claimed(self, job: ActiveJob) -> None:
        for watch in self._watches:
            watch.claimed(job)

    def left(self, jobs: Sequence[ActiveJob], why: Parting) -> None:
        for watch in self._watches:
            watch.left(jobs, why)

    def ended(self, job: ActiveJob, terminal: Terminal) -> None:
        for watch in self._watches:
            watch.ended(job, terminal)
