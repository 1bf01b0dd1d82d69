"""Parts of an engine process, for any model."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable

from octavo_worker.contract.channel import EngineChannel
from octavo_worker.contract.files import ModelNotFound, end_ids, model_folder
from octavo_worker.contract.messages import Refused, StartRefused
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.config import SchedulerConfig
from octavo_worker.engine.drafts import (
    ModelProposer,
    NgramProposer,
    Proposer,
    RowTimes,
    Speculation,
    StepCosts,
    SuffixProposer,
)
from octavo_worker.engine.grammar import Compiler, GrammarError, Preparation, Vocabulary
from octavo_worker.engine.loop import EngineLoop
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.scheduling.policy import FcfsPolicy, PriorityPolicy, SchedulingPolicy
from octavo_worker.engine.states.states import StateSizes
from octavo_worker.memory.cost import CostModel, PreemptionPolicy

log = logging.getLogger(__name__)

POLICIES: dict[str, Callable[[], SchedulingPolicy]] = {"priority": PriorityPolicy, "fcfs": FcfsPolicy}

PROPOSERS: dict[str, Callable[[], Proposer]] = {"ngram": NgramProposer, "suffix": SuffixProposer}
OVERHEAD = 1.02
OVERHEAD_S = 1e-4
OVERHEAD_ROW_S = 3e-6
"""By so many times and seconds, some for each row, a step with drafts is reckoned to take longer. The host chooses
them, verifies them, and does not plan ahead; and what gains less is not worth a guess."""

MASK_THREADS = 16
"""Threads that compute masks at most."""


def serve(sock: socket.socket, load_runner: Callable[[ModelOptions], ModelRunner], options: ModelOptions) -> None:
    """Load the model and serve the agent at the other end of `sock` until it goes."""
    began = time.perf_counter()
    channel = EngineChannel(sock)
    try:
        runner = load_runner(options)
    except StartRefused as refusal:
        channel.send(Refused(str(refusal)))
        sys.exit(1)
    except Exception as error:
        # The exit may take longer than the worker waits.
        channel.send(Refused(f"{type(error).__name__}: {error}", is_fault=True))
        raise
    scheduler = scheduler_for(runner, options)
    preparation = preparation_for(runner, options)
    gc.freeze()  # what the model brought stays for good: later collections need not walk it
    loop = EngineLoop(
        channel,
        runner,
        scheduler,
        preparation=preparation,
        overlap=options.overlap,
        check_integrity=options.check_integrity,
    )
    loop.run(load_seconds=time.perf_counter() - began)


def preparation_for(runner: ModelRunner, options: ModelOptions) -> Preparation:
    """Where requests wait for their grammars. The vocabulary is read now: that takes up to a second, in which nothing
    else can run."""
    try:
        folder = model_folder(options.model)
        stop_ids = [token for token in end_ids(folder) if token < runner.vocab_size]
        vocabulary = Vocabulary.of_folder(folder, rows=runner.vocab_size, stop_ids=stop_ids)
    except (GrammarError, ModelNotFound) as error:
        return Preparation(None, reason=str(error))
    return Preparation(Compiler(vocabulary, automata=mask_threads(runner)))


def mask_threads(runner: ModelRunner) -> int:
    """A device that computes by itself leaves the host's cores to masks."""
    return min(MASK_THREADS, len(os.sched_getaffinity(0))) if runner.asynchronous else 1


def scheduler_for(
    runner: ModelRunner,
    options: ModelOptions,
    *,
    num_blocks: int | None = None,
    speculation: Speculation | None = None,
) -> Scheduler:
    """A scheduler over the memory of this runner, or over its first `num_blocks` blocks, with the `speculation` of the
    options, or another."""
    return Scheduler(
        SchedulerConfig(
            num_blocks=num_blocks or runner.num_blocks,
            block_size=runner.block_size,
            max_model_len=runner.max_model_len,
            vocab_size=runner.vocab_size,
            token_budget=runner.token_budget,
            max_running=options.max_running,
            num_host_blocks=runner.num_host_blocks,
            first_host_block=runner.first_host_block,
            window=runner.window,
            reads_host=runner.reads_host,
            states=state_sizes(runner, options),
            windows=runner.windows,
            features=runner.features,
            abreast=runner.abreast,
            policy=preemption_policy(options, runner),
            scheduling=POLICIES[options.scheduling](),
            shared_reading=runner.shared_reading,
            speculation=speculation or speculation_for(runner, options),
            mask_threads=mask_threads(runner),
        )
    )


def state_sizes(runner: ModelRunner, options: ModelOptions) -> StateSizes | None:
    """The slots of a runner whose model keeps states; None for others. Fewer sequences run where slots are few."""
    if not runner.num_state_slots:
        return None
    host = runner.num_host_state_slots, runner.first_host_state_slot
    sizes = StateSizes(runner.num_state_slots, *host, options.state_interval)
    if sizes.most_running < options.max_running:
        log.warning(
            "at most %d of %d sequences run at once: there is memory for the states of %d. Raise --kv-memory or "
            "--gpu-memory, or lower --max-running",
            sizes.most_running, options.max_running, sizes.slots - 1,
        )  # fmt: skip
    return sizes


def speculation_for(runner: ModelRunner, options: ModelOptions) -> Speculation | None:
    """None without speculation. `ValueError` for a way to guess that is not known."""
    seconds = runner.step_seconds
    if options.speculate == "off" or seconds is None:
        return None
    drafting = None if seconds.drafting is None else RowTimes(seconds.drafting)
    ragged = [(rows, OVERHEAD * taken + OVERHEAD_S + OVERHEAD_ROW_S * rows) for rows, taken in seconds.ragged]
    verifying = RowTimes(ragged, padded=seconds.padded)
    costs = StepCosts(RowTimes(seconds.plain), verifying, drafting, seconds.catching_up)
    if options.runner_guesses:
        if seconds.drafting is None:
            raise ValueError(f"speculate is {options.speculate!r}, but the runner guesses nothing")
        return Speculation(ModelProposer(), costs, options.speculate_most, seconds.most_samples)
    if options.speculate not in PROPOSERS:
        raise ValueError(
            f"speculate is {options.speculate!r}: use off, {', '.join(PROPOSERS)}, draft:FOLDER or eagle:FOLDER"
        )
    return Speculation(PROPOSERS[options.speculate](), costs, options.speculate_most, seconds.most_samples)


def preemption_policy(options: ModelOptions, runner: ModelRunner) -> PreemptionPolicy:
    speeds = runner.speeds
    costs = (
        None
        if speeds is None
        else CostModel(
            speeds.block_bytes,
            speeds.link,
            speeds.prefill,
            state_bytes=speeds.state_bytes,
            window_bytes=speeds.window_bytes,
        )
    )
    return PreemptionPolicy(options.preemption, costs)
