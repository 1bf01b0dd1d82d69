"""Metrics by tenant, which a gateway has with `--metrics-by-tenant` alone: read from the account of usage."""

from __future__ import annotations

from octavo.terms.metrics.metric import Metric, every

MOST_TENANTS = 100
"""Tenants with series of their own; all others are one, `OTHER`."""

OTHER = "other"

TOKENS = Metric(
    name="octavo_tenant_tokens",
    kind="gauge",
    text="Tokens of the jobs that ended in the last hour: of prompts, those of them from the cache, of answers.",
    labels=("tenant", "kind"),
    known=every((OTHER,), ("input", "cached", "output")),
    unit="tokens",
)
REQUESTS = Metric(
    name="octavo_tenant_requests",
    kind="gauge",
    text="Jobs that ended in the last hour.",
    labels=("tenant",),
    known=every((OTHER,)),
)
FAILURES = Metric(
    name="octavo_tenant_failures",
    kind="gauge",
    text="Those of them that failed or expired.",
    labels=("tenant",),
    known=every((OTHER,)),
)

TENANTS = (TOKENS, REQUESTS, FAILURES)
