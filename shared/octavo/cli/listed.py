"""The commands as their list has them, before any of them is imported."""

from __future__ import annotations

from dataclasses import dataclass

_COMPUTING = ("pydantic_settings", "torch", "transformers", "octavo_kernels")


@dataclass(frozen=True)
class Listed:
    """A command: the beginning of its help, and where it is. Without a module it is an entry point of a package that
    may be missing; `needs` are the modules that it cannot do without."""

    line: str
    module: str = ""
    attribute: str = ""
    needs: tuple[str, ...] = ()


LISTED = {
    "up": Listed("Start server, gateway and workers on this machine and stay up until Ctrl-C.", "octavo.cli.up", "up"),
    "run": Listed("Submit a prompt and stream the answer.", "octavo.cli.run", "run"),
    "jobs": Listed("List, show, follow, cancel and requeue jobs.", "octavo.cli.jobs", "app"),
    "lanes": Listed("Pause lanes of models and let them go on.", "octavo.cli.operating.lanes", "app"),
    "batch": Listed("Files of requests: run one from here, or have the service run it.", "octavo.cli.batch", "app"),
    "webhooks": Listed("Webhook endpoints of a gateway, and what was delivered to them.", "octavo.cli.webhooks", "app"),
    "prefix": Listed("Keep named prefixes in the KV memory of workers.", "octavo.cli.prefix", "app"),
    "keys": Listed("Make, list, rotate and revoke API keys that the server keeps.", "octavo.cli.tenants.keys", "app"),
    "tenants": Listed("Show and change limits of tenants.", "octavo.cli.tenants.limits", "app"),
    "usage": Listed(
        "Tokens, requests and seconds of jobs that ended, from whole hours", "octavo.cli.tenants.usage", "usage"
    ),
    "top": Listed("Show lanes, jobs, workers, KV cache and latencies.", "octavo.cli.top", "top"),
    "workers": Listed("List the workers with a live heartbeat.", "octavo.cli.workers", "workers"),
    "doctor": Listed("Check this machine; say for each problem what to do next.", "octavo.cli.doctor", "doctor"),
    "demo": Listed(
        "Start everything on the bundled model, stream answers, kill a worker in mid-answer.",
        *("octavo.cli.demo", "demo"),
    ),
    "gateway": Listed(
        "Serve the HTTP API: jobs, OpenAI-style endpoints, metrics, documentation.",
        needs=("fastapi", "uvicorn", "pydantic_settings"),
    ),
    "clerk": Listed(
        "Work on batches: validate, submit, collect, finish. And deliver webhooks.",
        needs=("pydantic_settings", "prometheus_client", "httpcore", "standardwebhooks"),
    ),
    "worker": Listed("Run a worker: claim jobs, generate, stream the tokens.", needs=_COMPUTING),
    "bench": Listed("Measure the engine alone, or the whole service.", needs=_COMPUTING),
}
"""In the order of the list."""
