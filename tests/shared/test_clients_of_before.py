"""Scripts travel with their caller: on one server, clients of before go on with the scripts that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from octavo.queue.calls import Call
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams

SCRIPTS = Path(__file__).parent / "data" / "scripts-before"
POSITIONS = (
    *("id", "body", "hash", "tenant", "idempotency_key", "model", "class", "cost", "est", "seed", "timeout_ms"),
    *("queue_timeout_ms", "metadata", "retention", "cap_jobs", "cap_tenant_jobs", "cap_bytes", "subscriber"),
    *("several", "attachment", "again"),
)
SINCE = {"max_tokens"}  # names that it does not know
BARE = JobRequest(model="toy", prompt="hello", sampling=SamplingParams(max_tokens=8))
FULL = JobRequest(
    model="toy",
    prompt=(1, 2, 3),
    sampling=SamplingParams(n=3),
    metadata={"a": "é"},
    priority="high",
    timeout_s=900,
    queue_timeout_s=60,
)


def enqueue_before(world: Any, call: Call[Any]) -> str:
    """The id of the job that a client of before makes of the same: it numbers its arguments."""
    named = {name.decode(): value for name, value in msgpack.unpackb(call.args[0], raw=True).items()}
    named = {name: value for name, value in named.items() if name not in SINCE} | {"cap_tenant_jobs": 20_000}
    assert set(named) <= set(POSITIONS)
    arguments = [int(named.get(name, 0)) if name in ("several", "again") else named.get(name, "") for name in POSITIONS]
    source = (SCRIPTS / "enqueue.lua").read_text(encoding="utf-8")
    outcome, job_id, *_ = world.redis.eval(source, len(call.keys), *call.keys, *arguments)
    assert outcome == b"ok"
    return str(job_id.decode())


@pytest.mark.parametrize(
    ("request_of_both", "options"),
    [(BARE, {}), (FULL, {"key": "k", "subscriber": "reader", "attachment": bytes(range(256))})],
    ids=["bare", "full"],
)
def test_clients_of_before_and_of_now_make_the_same_job_and_both_run(
    world: Any, request_of_both: JobRequest, options: dict[str, Any]
) -> None:
    earlier = enqueue_before(world, world.enqueue_call(request_of_both, tenant="before", **options))
    later = world.enqueue(request_of_both, tenant="now", **options)
    states = [world.state(job_id) for job_id in (earlier, later)]
    for state in states:
        accepted = int(state.pop("ct"))
        state.update({name: str(int(state[name]) - accepted) for name in ("dl", "qdl") if name in state})
        assert state.pop("tn") in ("before", "now")
    states[1].pop("kb", None)  # scripts of before do not count what a job stores
    assert states[0] == states[1]
    for job_id in (earlier, later):
        claim = world.claim_one()
        assert (claim.job_id, claim.request) == (job_id, request_of_both)
        world.append(claim, 0, [1, 2])
        assert world.finish(claim, tokens=2)
        assert [event.offset for event in world.stream(job_id)] == [2, 2]
    assert world.counters() == {}


def test_an_idempotency_key_used_before_holds_now_and_the_other_way_round(world: Any) -> None:
    first = enqueue_before(world, world.enqueue_call(key="k"))
    again = world.run(world.enqueue_call(key="k"))
    assert (again.created, again.job_id) == (False, first)
    second = world.enqueue(key="other")
    assert enqueue_before(world, world.enqueue_call(key="other")) == second
