"""Watch over the jobs of a worker."""

from __future__ import annotations

from octavo.terms.messages import Terminal
from octavo_worker.agent.jobs import ActiveJob


class JobWatch:
    """Is told of jobs as they come and when their end is stored. This one does nothing with it."""

    def claimed(self, job: ActiveJob) -> None:
        """The job came from the queue."""

    def ended(self, job: ActiveJob, terminal: Terminal) -> None:
        """The job's end is stored, and is this worker's doing."""
