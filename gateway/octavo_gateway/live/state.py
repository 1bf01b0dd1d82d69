"""The fleet as one JSON object of objects by name, so that differences are small and merge."""

from __future__ import annotations

from typing import Any

from octavo.terms.fleet import FleetStats, Lane


def state_of(stats: FleetStats) -> dict[str, Any]:
    """`stats` with its lists by name: lanes by model and class, all else by id. Jobs of lanes are apart from them."""
    return {
        "queued": stats.queued,
        "running": stats.running,
        "tokens_per_s": stats.tokens_per_s,
        "dead": stats.dead,
        "lanes": {_key(lane): lane.model_dump(mode="json", exclude={"jobs"}) for lane in stats.lanes},
        "jobs": {
            job.id: {**job.model_dump(mode="json", exclude={"id"}), "lane": _key(lane)}
            for lane in stats.lanes
            for job in lane.jobs
        },
        "workers": {worker.id: worker.model_dump(mode="json") for worker in stats.workers},
        "batches": {batch.id: batch.model_dump(mode="json") for batch in stats.batches},
        "dead_letters": {letter.job_id: letter.model_dump(mode="json") for letter in stats.dead_letters},
        "webhooks": {endpoint.id: endpoint.model_dump(mode="json") for endpoint in stats.webhooks},
    }


def _key(lane: Lane) -> str:
    return f"{lane.model} {lane.priority}"
