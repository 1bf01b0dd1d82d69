"""Random workloads on the fake model, and the check that paging changed no token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from clocks import Clock
from engine_driver import Driver, expected_beams, expected_tokens, make_request
from fake_runner import FakeRunner, score
from proposers import AnswerBook

from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.engine.drafts import Speculation
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.cost import Decision, PreemptionPolicy, Victim

CONTEXT = 200
CHATS = {"chat_rate": 0.5, "beam_rate": 0.1, "deadline_rate": 0.05}
"""Rates of a workload of chats."""


def random_request(
    rng: random.Random,
    name: str,
    prefixes: list[list[int]],
    *,
    context: int = CONTEXT,
    window: int = 0,
    beam_rate: float = 0.2,
    deadline_rate: float = 0.0,
) -> AddRequest:
    """A prompt that often starts like others, sometimes several samples, sometimes taken over half way."""
    shared = rng.choice([*prefixes, []])
    prompt = shared[: rng.randint(0, len(shared))] + [rng.randrange(50) for _ in range(rng.randint(1, 30))]
    max_tokens, n = rng.randint(1, 40), rng.choice([1, 1, 1, 2, 4])
    if rng.random() < beam_rate:
        return random_beams(rng, name, prompt)
    options = {
        "seed": rng.randrange(3),
        "salt": rng.choice([b"", b"", b"tenant"]),
        "priority": rng.randrange(3),
        "stop_token_ids": [rng.randrange(997) for _ in range(rng.choice([0, 0, 30]))],
        "min_tokens": rng.choice([0, 0, 3]),
        "prompt_logprobs": rng.choice([0, *[None] * 5]),
        "presence_penalty": 0.5 if len(prompt) % 3 == 0 else 0.0,
    }
    if deadline_rate and rng.random() < deadline_rate:
        options["deadline"] = float(rng.randint(5, 400))
    request = make_request(name, prompt, max_tokens=max_tokens, n=n, **options)
    if rng.random() < 0.25:
        whole = {i: expected_tokens(request, i, max_model_len=context, window=window) for i in range(n)}
        published = {i: tokens[: rng.randrange(len(tokens))] for i, tokens in whole.items()}
        request = make_request(name, prompt, max_tokens=max_tokens, published=published, **options)
    return request


def random_beams(rng: random.Random, name: str, prompt: list[int]) -> AddRequest:
    width = rng.randint(1, 6)
    options = BeamOptions(width, rng.choice([0.0, 1.0, 2.0]), rng.choice([True, False, "never"]))
    stops = [rng.randrange(997) for _ in range(rng.choice([0, 60]))]
    return make_request(
        name,
        prompt,
        max_tokens=rng.randint(1, 40),
        n=rng.randint(1, width),
        priority=rng.randrange(3),
        min_tokens=rng.choice([0, 3]) if rng.random() < 0.5 else 0,
        stop_token_ids=stops,
        beam=options,
    )


def next_turn(rng: random.Random, name: str, requests: dict[str, AddRequest], context: int, window: int) -> AddRequest:
    """A request whose prompt is the text of an earlier one and a few tokens more, if that is not too long."""
    before = requests[str(rng.randrange(int(name)))]
    if before.sampling.beam is not None:
        return requests[name]
    answer = expected_tokens(before, rng.choice(before.sequences).index, max_model_len=context, window=window)
    prompt = [*before.prompt, *answer, *(rng.randrange(50) for _ in range(rng.randint(1, 9)))]
    return (
        make_request(name, prompt, max_tokens=12, seed=1, salt=before.salt) if len(prompt) < context else requests[name]
    )


class MixedPolicy(PreemptionPolicy):
    """Swaps or recomputes by chance."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__("swap")
        self._rng = rng

    def decide(self, victim: Victim, host: BlockPool | None) -> Decision:
        return super().decide(victim, host) if self._rng.random() < 0.5 else Decision.CHEAPER


def run_workload(
    seed: int,
    *,
    usable_blocks: int,
    block_size: int,
    host_blocks: int = 0,
    policy: PreemptionPolicy | None = None,
    count: int = 25,
    abort_rate: float = 0.02,
    max_running: int = 8,
    device: type[FakeRunner] = FakeRunner,
    beam_rate: float = 0.2,
    deadline_rate: float = 0.0,
    context: int = CONTEXT,
    longest_prefix: int = 60,
    speculation: Speculation | None = None,
    chat_rate: float = 0.0,
    **memory: Any,
) -> Driver:
    """A step takes a second of the clock that deadlines go by; the timer goes on by 10 ms whenever it is read. An
    `AnswerBook` of the speculation learns what will be said. Of the requests a share of `chat_rate` goes on from the
    answer of another one."""
    rng, now = random.Random(seed), 0.0
    driver = Driver.create(
        usable_blocks + 1,
        block_size,
        runner={"max_model_len": context, "num_host_blocks": host_blocks, **memory},
        device=device,
        clock=lambda: now,
        timer=Clock(),
        policy=policy,
        token_budget=rng.choice([1, 24, max_running + 24, max_running + 248]),
        max_running=max_running,
        watermark=rng.choice([0.0, 0.1]),
        speculation=speculation,
    )
    prefixes = [[rng.randrange(50) for _ in range(rng.randint(20, longest_prefix))] for _ in range(3)]
    window = driver.runner.window
    options = {"context": context, "window": window, "beam_rate": beam_rate, "deadline_rate": deadline_rate}
    requests = {str(i): random_request(rng, str(i), prefixes, **options) for i in range(count)}
    chats = (name for name in list(requests)[1:] if rng.random() < chat_rate)
    requests |= {name: next_turn(rng, name, requests, context, window) for name in chats}
    if speculation is not None and isinstance(speculation.proposer, AnswerBook):
        teach(speculation.proposer, requests.values(), max_model_len=context, window=window)
    arriving, aborted = list(requests.values()), set[tuple[str, int]]()
    while arriving or driver.busy:
        for _ in range(rng.choice([0, 0, 1, 3])):
            if arriving:
                driver.add(arriving.pop())
        if rng.random() < abort_rate:
            aborted |= abort_some(driver, rng, requests)
        driver.step()
        now += 1
    driver.runner.close()
    check_slots(driver)
    for group in driver.scheduler.kv.groups:
        assert group.pool.used == group.pool.quarantined == 0
        assert group.host is None or group.host.pool.used == group.host.pool.quarantined == 0
    check_tokens(driver, requests, aborted)
    return driver


def check_slots(driver: Driver) -> None:
    """No slot of a state is left in use, whatever happened."""
    states = driver.scheduler.kv.states
    if states is not None:
        assert states.pool.used == states.pool.quarantined == 0
        assert not states.snapshots.pending
        assert not states.snapshots.coming
        assert states.host is None or states.host.used == states.host.quarantined == 0


def teach(book: AnswerBook, requests: Iterable[AddRequest], **options: int) -> None:
    """Tell a book what the fake model will say."""
    for request in requests:
        if request.sampling.beam is None:
            answers = [expected_tokens(request, given.index, **options) for given in request.sequences]
            book.answers.setdefault(tuple(request.prompt), []).extend(answers)


def abort_some(driver: Driver, rng: random.Random, requests: dict[str, AddRequest]) -> set[tuple[str, int]]:
    """Aborts a request or one of its sequences. Returns the sequences that must end early: beams cannot alone."""
    request = requests[rng.choice(list(requests))]
    index = rng.choice([None, *(s.index for s in request.sequences)])
    driver.scheduler.abort(request.id, index)
    if index is not None and request.sampling.beam is not None:
        return set()
    return {(request.id, s.index) for s in request.sequences if index in (None, s.index)}


def check_tokens(driver: Driver, requests: dict[str, AddRequest], aborted: set[tuple[str, int]]) -> None:
    beams = {
        name: expected_beams(request, max_model_len=driver.runner.max_model_len, window=driver.runner.window)
        for name, request in requests.items()
        if request.sampling.beam is not None
    }
    for (name, index), tokens in driver.tokens.items():
        if name in beams:
            expected = beams[name][index]
        else:
            expected = expected_tokens(
                requests[name], index, max_model_len=driver.runner.max_model_len, window=driver.runner.window
            )
        if name in driver.failed:
            assert driver.failed[name].code in ("pool_too_small", "step_failed", "deadline")
        if (name, index) in aborted or name in driver.failed:
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
            assert (name, index) in driver.reasons
            assert name in driver.started
            check_scores(driver, requests[name])


def check_scores(driver: Driver, request: AddRequest) -> None:
    if request.sampling.prompt_logprobs is not None:
        got, prompt, window = driver.started[request.id].prompt_logprobs, request.prompt, driver.runner.window
        seen = [prompt[max(0, i - window) if window else 0 : i] for i in range(1, len(prompt))]
        assert [entry.logprob for entry in got[1:]] == [score(s, t) for s, t in zip(seen, prompt[1:], strict=True)]


def run_preempted_chats(mode: str, device: type[FakeRunner], memory: Callable[[int], dict[str, Any]]) -> None:
    """Three workloads in a small memory, to which each adds that of its number, with preemptions of this kind: hits in
    the cache, and swaps where the kind has any."""
    policy = MixedPolicy(random.Random(1)) if mode == "mixed" else PreemptionPolicy(mode)  # type: ignore[arg-type]
    sizes = {"usable_blocks": 40, "block_size": 8, "host_blocks": 80, "count": 60}
    hits = swapped = 0
    for seed in range(3):
        driver = run_workload(seed, policy=policy, device=device, **sizes, **memory(seed), **CHATS)
        stats = driver.scheduler.stats()
        assert stats.preemptions > 0
        hits, swapped = hits + stats.cached_tokens, swapped + stats.swapped_out
    assert hits > 0
    assert (swapped > 0) == (mode != "recompute")
