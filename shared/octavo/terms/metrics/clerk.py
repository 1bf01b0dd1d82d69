"""Metrics that each clerk counts of itself."""

from __future__ import annotations

from octavo.terms.metrics.metric import Alert, Metric, Panel, every

BATCHES_OWNED = Metric(name="octavo_clerk_batches", kind="gauge", text="Batches that this clerk owns.")
LINES = Metric(
    name="octavo_clerk_lines",
    kind="counter",
    text="Lines that are in a named part.",
    labels=("outcome",),
    known=every(("completed", "failed", "undone")),
    panel=Panel(
        row="Batches",
        title="Lines",
        expression="sum by (outcome) (rate(octavo_clerk_lines_total[5m]))",
        legend="outcome",
    ),
)
JOBS_SUBMITTED = Metric(name="octavo_clerk_jobs_submitted", kind="counter", text="Jobs submitted for lines.")
PARTS = Metric(name="octavo_clerk_parts", kind="counter", text="Parts written and named.")
BATCHES_ENDED = Metric(
    name="octavo_clerk_batches_ended",
    kind="counter",
    text="Batches that ended.",
    labels=("status",),
    known=every(("completed", "failed", "expired", "cancelled")),
)
BATCHES_URGENT = Metric(
    name="octavo_clerk_batches_urgent",
    kind="counter",
    text="Batches that went on as class normal to meet their window.",
)
FILES_EXPIRED = Metric(name="octavo_clerk_files_expired", kind="counter", text="Files removed at their time.")
PROBLEMS = Metric(
    name="octavo_clerk_problems",
    kind="counter",
    text="Times that a batch had to wait for something broken.",
    labels=("code",),
    known=every(
        (
            *("internal_error", "server_unavailable", "storage_unavailable", "queue_full", "model_not_found"),
            *("not_stored", "batch_moved"),
        )
    ),
    panel=Panel(
        row="Batches",
        title="Problems of clerks",
        expression="sum by (code) (increase(octavo_clerk_problems_total[5m]))",
        legend="code",
    ),
    alerts=(
        Alert(
            name="OctavoBatchProblems",
            expression="sum by (code) (increase(octavo_clerk_problems_total[15m])) > 10",
            minutes=10,
            severity="warning",
            summary="Batches cannot go on: {{ $labels.code }}.",
            step="Read the clerk's log, which names the batch and what it waits for.",
        ),
    ),
)
WEBHOOK_TRIES = Metric(
    name="octavo_clerk_webhook_tries",
    kind="counter",
    text="Tries of deliveries that are over.",
    labels=("outcome",),
    known=every(("ok", "again", "failed", "gone")),
)

CLERK = (
    *(BATCHES_OWNED, LINES, JOBS_SUBMITTED, PARTS, BATCHES_ENDED, BATCHES_URGENT, FILES_EXPIRED, PROBLEMS),
    WEBHOOK_TRIES,
)
