"""Metrics that each gateway counts of itself. Sums over gateways are the service's."""

from __future__ import annotations

from octavo.terms.metrics import buckets
from octavo.terms.metrics.metric import MODEL, PRIORITIES, Alert, Metric, Panel, every

_SCRIPTS = ("attach", "cancel", "detach", "enqueue", "erase", "probe", "reap")
_OUTCOMES = ("ok", "refused", "failed", "lost")
STATUSES = ("200", "500", "503")
"""Statuses that each route is known to have from the start."""

HTTP_REQUESTS = Metric(
    name="octavo_http_requests",
    kind="counter",
    text="Requests answered.",
    labels=("method", "route", "status"),
    panel=Panel(
        row="Gateways",
        title="Requests by status",
        expression="sum by (status) (rate(octavo_http_requests_total[5m]))",
        legend="status",
        unit="reqps",
    ),
    alerts=(
        Alert(
            name="OctavoGatewayErrors",
            expression='sum(rate(octavo_http_requests_total{status=~"5.."}[5m])) '
            "/ sum(rate(octavo_http_requests_total[5m])) > 0.02",
            minutes=5,
            severity="critical",
            summary="More than 2 % of the requests end with a status of 500 or above.",
            step="Read the gateways' logs by the request id; a 503 names what is missing: the server, or a worker.",
        ),
    ),
)
JOBS_SUBMITTED = Metric(
    name="octavo_jobs_submitted",
    kind="counter",
    text="Jobs accepted into the queue.",
    labels=(MODEL, "priority"),
    known=every(PRIORITIES),
    panel=Panel(row="Gateways", title="Jobs submitted", unit="reqps"),
)
SEQUENCES_FINISHED = Metric(
    name="octavo_http_request_success",
    kind="counter",
    text="Sequences of OpenAI-style requests that completed at this gateway.",
    labels=(MODEL, "finished_reason"),
    known=every(("stop", "length", "abort")),
)
TIME_TO_FIRST_TOKEN = Metric(
    name="octavo_http_time_to_first_token_seconds",
    kind="histogram",
    text="From the arrival of an OpenAI-style request to its first token.",
    labels=(MODEL,),
    unit="seconds",
    buckets=buckets.FIRST_TOKEN,
    panel=Panel(row="Gateways", title="First token at the gateway, 95 %"),
)
INTER_TOKEN_LATENCY = Metric(
    name="octavo_http_inter_token_latency_seconds",
    kind="histogram",
    text="Time between tokens of an OpenAI-style request, as they reach the gateway.",
    labels=(MODEL,),
    unit="seconds",
    buckets=buckets.TOKEN,
)
REQUEST_LATENCY = Metric(
    name="octavo_http_e2e_request_latency_seconds",
    kind="histogram",
    text="From the arrival of an OpenAI-style request to its last token.",
    labels=(MODEL,),
    unit="seconds",
    buckets=buckets.REQUEST,
)
SSE_CONNECTIONS = Metric(
    name="octavo_sse_connections",
    kind="gauge",
    text="Open event streams.",
    panel=Panel(row="Gateways", title="Open streams", expression="sum(octavo_sse_connections)", legend=""),
)
SSE_SLOW_CONSUMERS = Metric(
    name="octavo_sse_slow_consumers",
    kind="counter",
    text="Streams whose client was too slow and had to be waited for.",
)
SCRIPT_CALLS = Metric(
    name="octavo_script_call_seconds",
    kind="histogram",
    text="Round trips of this gateway's script calls, by script and outcome: ok, refused, failed, lost.",
    labels=("script", "outcome"),
    known=(*every(_SCRIPTS, ("ok",)), *every(("enqueue",), _OUTCOMES[1:])),
    unit="seconds",
    buckets=buckets.SCRIPT,
    panel=Panel(
        row="Gateways",
        title="Round trips to the server, 99 %",
        expression="histogram_quantile(0.99, sum by (le, script) (rate(octavo_script_call_seconds_bucket[5m])))",
        legend="script",
        unit="s",
    ),
    alerts=(
        Alert(
            name="OctavoServerSlow",
            expression="histogram_quantile(0.99, sum by (le) (rate("
            'octavo_script_call_seconds_bucket{outcome="ok"}[5m]))) > 0.25',
            minutes=5,
            severity="warning",
            summary="One in a hundred calls of the Redis server takes more than 250 ms.",
            step="Look at `SLOWLOG GET` and the disk of the Redis server; move what else runs there elsewhere.",
        ),
    ),
)

GATEWAY = (
    *(HTTP_REQUESTS, JOBS_SUBMITTED, SEQUENCES_FINISHED, TIME_TO_FIRST_TOKEN, INTER_TOKEN_LATENCY, REQUEST_LATENCY),
    *(SSE_CONNECTIONS, SSE_SLOW_CONSUMERS, SCRIPT_CALLS),
)
