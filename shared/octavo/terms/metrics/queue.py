"""Metrics of the queue, read from the server at each scrape. Every gateway says the same: queries take the maximum."""

from __future__ import annotations

from octavo.terms.metrics.metric import MODEL, PRIORITIES, Alert, Metric, Panel, every

SERVER_UP = Metric(
    name="octavo_server_up",
    kind="gauge",
    text="1 while the Redis server answers. At 0 the gateway has no other figure of the queue.",
    panel=Panel(row="Queue", title="Server", expression="max(octavo_server_up)", legend=""),
    alerts=(
        Alert(
            name="OctavoServerDown",
            expression="max(octavo_server_up) == 0",
            minutes=1,
            severity="critical",
            summary="No gateway reaches the Redis server.",
            step="Start the server on its own data; workers keep what they generate meanwhile and store it then.",
        ),
        Alert(
            name="OctavoGatewaysGone",
            expression="absent(octavo_server_up)",
            minutes=2,
            severity="critical",
            summary="No gateway is scraped, so nothing is known of the queue.",
            step="Ask `/livez` of a gateway; if it answers, look at Prometheus' targets and at its key for `/metrics`.",
        ),
    ),
)
DEPTH = Metric(
    name="octavo_queue_depth",
    kind="gauge",
    text="Jobs that wait for a worker.",
    labels=(MODEL,),
    panel=Panel(row="Queue", title="Jobs that wait"),
)
BACKLOG_TOKENS = Metric(
    name="octavo_queue_backlog_tokens",
    kind="gauge",
    text="Prompt tokens of the jobs that wait, as estimated at submission; beyond 256 of a lane by their mean.",
    labels=(MODEL, "priority"),
    known=every(PRIORITIES),
    unit="tokens",
    panel=Panel(
        row="Queue",
        title="Backlog by class",
        expression="max by (model_name, priority) (octavo_queue_backlog_tokens)",
        legend="priority",
    ),
)
OLDEST_WAIT = Metric(
    name="octavo_queue_oldest_wait_seconds",
    kind="gauge",
    text="Age of the oldest job that waits; 0 if none does.",
    labels=(MODEL, "priority"),
    known=every(PRIORITIES),
    unit="seconds",
    panel=Panel(
        row="Queue",
        title="Oldest wait by class",
        expression="max by (model_name, priority) (octavo_queue_oldest_wait_seconds)",
        legend="priority",
        unit="s",
    ),
    alerts=(
        Alert(
            name="OctavoJobsWait",
            expression='max by (model_name) (octavo_queue_oldest_wait_seconds{priority=~"high|normal"}) > 300',
            minutes=5,
            severity="warning",
            summary="A job of {{ $labels.model_name }} has waited for more than five minutes.",
            step="Add workers of the model; `octavo jobs list` shows which tenant's jobs wait.",
        ),
    ),
)
LANE_PAUSED = Metric(
    name="octavo_lane_paused",
    kind="gauge",
    text="1 while the lane is paused: its jobs wait because an operator wants it. It has no oldest wait.",
    labels=(MODEL, "priority"),
    known=every(PRIORITIES),
    panel=Panel(
        row="Queue",
        title="Paused lanes",
        expression="max by (model_name, priority) (octavo_lane_paused)",
        legend="priority",
    ),
)
WORKERS = Metric(
    name="octavo_workers",
    kind="gauge",
    text="Workers with a fresh heartbeat.",
    labels=(MODEL,),
    panel=Panel(row="Queue", title="Workers"),
    alerts=(
        Alert(
            name="OctavoNoWorkers",
            expression="max by (model_name) (octavo_workers) == 0 and max by (model_name) (octavo_queue_depth) > 0 "
            "unless min by (model_name) (octavo_lane_paused) == 1",
            minutes=2,
            severity="critical",
            summary="Jobs of {{ $labels.model_name }} wait and no worker serves it.",
            step="Start `octavo worker` with the model and read the log of the last one: it says why it left.",
        ),
    ),
)
TAKEOVERS = Metric(
    name="octavo_takeovers",
    kind="counter",
    text="Jobs taken from workers or engines that died, since the server was set up.",
    labels=(MODEL,),
    panel=Panel(
        row="Queue",
        title="Takeovers",
        expression="max by (model_name) (increase(octavo_takeovers_total[5m]))",
    ),
    alerts=(
        Alert(
            name="OctavoTakeovers",
            expression="max by (model_name) (increase(octavo_takeovers_total[15m])) > 50",
            minutes=5,
            severity="warning",
            summary="Workers of {{ $labels.model_name }} lose their jobs again and again.",
            step="Find the workers that end in their hosts' logs: memory, GPU faults, evictions.",
        ),
    ),
)
WRITES_REFUSED = Metric(
    name="octavo_writes_refused",
    kind="counter",
    text="Writes of workers that owned the job no more: each was kept out of its stream.",
    labels=(MODEL,),
    panel=Panel(
        row="Queue",
        title="Refused writes",
        expression="max by (model_name) (increase(octavo_writes_refused_total[5m]))",
    ),
    alerts=(
        Alert(
            name="OctavoWritesRefused",
            expression="max by (model_name) (increase(octavo_writes_refused_total[15m])) > 50",
            minutes=5,
            severity="warning",
            summary="Workers of {{ $labels.model_name }} go on writing after their leases ran out.",
            step="Look for hosts that pause or for a slow network, and give workers a longer `--lease`.",
        ),
    ),
)
DEAD_LETTERS = Metric(
    name="octavo_dead_letters",
    kind="gauge",
    text="Jobs that were given up, in the list of dead letters.",
    panel=Panel(row="Queue", title="Dead letters", expression="max(octavo_dead_letters)", legend=""),
    alerts=(
        Alert(
            name="OctavoDeadLetters",
            expression="max(delta(octavo_dead_letters[15m])) > 0",
            minutes=0,
            severity="warning",
            summary="A job was given up.",
            step="`octavo jobs dead` says which and why; `octavo jobs show` has its attempts.",
        ),
    ),
)
BATCHES = Metric(
    name="octavo_batches",
    kind="gauge",
    text="Batches that have not ended, by whether a clerk has them.",
    labels=("state",),
    known=every(("owned", "waiting")),
    panel=Panel(row="Batches", title="Batches", expression="max by (state) (octavo_batches)", legend="state"),
)
BATCH_LAG = Metric(
    name="octavo_batch_lag_seconds",
    kind="gauge",
    text="Time that the batch which is due for longest has waited for a clerk; 0 if none waits.",
    unit="seconds",
    panel=Panel(row="Batches", title="Lag of batches", expression="max(octavo_batch_lag_seconds)", legend=""),
    alerts=(
        Alert(
            name="OctavoBatchLag",
            expression="max(octavo_batch_lag_seconds) > 120",
            minutes=5,
            severity="warning",
            summary="A batch has waited for a clerk for more than two minutes.",
            step="Start `octavo clerk` with the gateways' files, or read its log if one runs.",
        ),
    ),
)
DELIVERIES = Metric(
    name="octavo_webhook_deliveries_waiting", kind="gauge", text="Deliveries of webhooks that wait for a try."
)
DELIVERY_AGE = Metric(
    name="octavo_webhook_oldest_due_seconds",
    kind="gauge",
    text="Time since the oldest delivery that waits was due; 0 if none is late.",
    unit="seconds",
    panel=Panel(
        row="Batches", title="Age of webhooks", expression="max(octavo_webhook_oldest_due_seconds)", legend="", unit="s"
    ),
    alerts=(
        Alert(
            name="OctavoWebhooksLate",
            expression="max(octavo_webhook_oldest_due_seconds) > 120",
            minutes=5,
            severity="warning",
            summary="Webhooks are delivered more than two minutes late.",
            step="Start `octavo clerk` with the gateways' secret, or read its log if one runs.",
        ),
    ),
)
DELIVERY_FAILURES = Metric(
    name="octavo_webhook_failures",
    kind="counter",
    text="Deliveries of webhooks that were given up, since the server was set up.",
)

QUEUE = (
    *(SERVER_UP, DEPTH, BACKLOG_TOKENS, OLDEST_WAIT, LANE_PAUSED, WORKERS, TAKEOVERS, WRITES_REFUSED, DEAD_LETTERS),
    *(BATCHES, BATCH_LAG, DELIVERIES, DELIVERY_AGE, DELIVERY_FAILURES),
)
