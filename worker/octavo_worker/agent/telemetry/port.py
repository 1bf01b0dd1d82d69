"""The worker's port for Prometheus and probes."""

from __future__ import annotations

from collections.abc import Callable

from octavo_worker.agent.agent import Agent
from octavo_worker.agent.failures import WrongSetting
from octavo_worker.agent.membership import ScriptCallCounts
from octavo_worker.contract.options import WorkerOptions


def serve_metrics(
    options: WorkerOptions, model: str, agent: Agent, calls: ScriptCallCounts, is_traced: Callable[[], bool]
) -> None:
    """Answer from now on, if a port is given. Raises WrongSetting for one that is taken."""
    if not options.metrics_port:
        return
    from prometheus_client import CollectorRegistry  # workers without a port count nothing

    from octavo.service.metrics.port import MetricsPort
    from octavo_worker.agent.telemetry.figures import Figures

    figures = Figures(
        model,
        stats=lambda: agent.stats,
        calls=calls.sums,
        is_ready=lambda: agent.why_not_ready() is None,
        vllm=options.metrics_names == "vllm",
        is_traced=is_traced,
    )
    agent.watch.add(figures)
    registry = CollectorRegistry()
    registry.register(figures)
    try:
        MetricsPort(options.metrics_host, options.metrics_port, registry, agent.why_not_ready)
    except OSError as error:
        at = f"{options.metrics_host}:{options.metrics_port}"
        raise WrongSetting(f"--metrics-port: {at} cannot be served: {error.strerror or error}") from None
