"""Metrics that each worker serves: its engine's, its jobs', its calls to the server. All are of its one model.

Suffixes are those that vLLM made common, so that dashboards port by search and replace.
"""

from __future__ import annotations

from octavo.terms.metrics import buckets
from octavo.terms.metrics.metric import MODEL, Alert, Metric, Panel, every
from octavo.terms.stats import PREEMPTION_REASONS

_BY_MODEL = (MODEL,)


def _stat(kind: str, name: str, stat: str, text: str, *, vllm: tuple[str, ...] = (), title: str = "") -> Metric:
    """A figure of the engine without further labels. `title` is that of its panel."""
    panel = Panel(row="Workers", title=title) if title else None
    return Metric(
        name=name,
        kind="gauge" if kind == "gauge" else "counter",
        text=text,
        labels=_BY_MODEL,
        stat=stat,
        vllm=vllm,
        panel=panel,
    )


READY = Metric(
    name="octavo_worker_ready",
    kind="gauge",
    text="1 while the worker takes jobs: its engine is loaded and its heartbeat gets through.",
    labels=_BY_MODEL,
    alerts=(
        Alert(
            name="OctavoWorkerNotReady",
            expression="min by (model_name) (octavo_worker_ready) == 0",
            minutes=10,
            severity="warning",
            summary="A worker of {{ $labels.model_name }} has taken no jobs for ten minutes.",
            step="Ask `/readyz` of the workers for the reason; the log has the last words of an engine that ended.",
        ),
    ),
)
STATS = (
    _stat(
        "gauge",
        "octavo_num_requests_running",
        "running",
        "Sequences in the running batch.",
        vllm=("vllm:num_requests_running",),
        title="Sequences running",
    ),
    _stat(
        "gauge",
        "octavo_num_requests_waiting",
        "waiting",
        "Sequences that wait in the worker for memory.",
        vllm=("vllm:num_requests_waiting",),
        title="Sequences waiting in workers",
    ),
    _stat("gauge", "octavo_num_requests_swapped", "swapped", "Sequences whose memory is swapped out."),
    Metric(
        name="octavo_kv_cache_usage_perc",
        kind="gauge",
        text="Share of the KV cache's blocks that sequences use, 0 to 1.",
        labels=_BY_MODEL,
        unit="share",
        stat="used_share",
        vllm=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        panel=Panel(
            row="Workers",
            title="KV cache in use",
            expression="avg by (model_name) (octavo_kv_cache_usage_perc)",
            unit="percentunit",
        ),
    ),
    Metric(
        name="octavo_kv_blocks",
        kind="gauge",
        text="Blocks of the KV cache, by state.",
        labels=(MODEL, "state"),
        known=every(("free", "used", "cached", "quarantined", "shared", "pinned", "host", "host_free", "cold")),
        stat="blocks",
        panel=Panel(row="Workers", title="KV blocks", expression="sum by (state) (octavo_kv_blocks)", legend="state"),
    ),
    Metric(
        name="octavo_state_slots",
        kind="gauge",
        text="Slots for the states of recurrent layers, by state; none for models without.",
        labels=(MODEL, "state"),
        known=every(("free", "used", "cached", "quarantined", "shared", "pinned", "host", "host_free")),
        stat="states",
    ),
    Metric(
        name="octavo_window_blocks",
        kind="gauge",
        text="Blocks of layers with a window, by state; none where all layers have one group of blocks.",
        labels=(MODEL, "state"),
        known=every(("free", "used", "cached", "quarantined", "shared", "pinned", "host", "host_free")),
        stat="windows",
    ),
    Metric(
        name="octavo_num_preemptions",
        kind="counter",
        text="Sequences that gave up their memory.",
        labels=_BY_MODEL,
        stat="preemptions",
        vllm=("vllm:num_preemptions",),
        panel=Panel(row="Workers", title="Preemptions"),
        alerts=(
            Alert(
                name="OctavoPreemptions",
                expression="sum by (model_name) (rate(octavo_num_preemptions_total[10m])) > 1",
                minutes=10,
                severity="warning",
                summary="Workers of {{ $labels.model_name }} preempt more than one sequence a second.",
                step="Add workers, give engines more KV memory or `--swap-memory`, or lower `--max-running`.",
            ),
        ),
    ),
    Metric(
        name="octavo_preemptions",
        kind="counter",
        text="Sequences that gave up their memory, by what became of it and why.",
        labels=(MODEL, "reason"),
        known=every(tuple(PREEMPTION_REASONS)),
        stat="reasons",
    ),
    _stat(
        "counter",
        "octavo_prompt_tokens",
        "prompt_tokens",
        "Tokens of prompts.",
        vllm=("vllm:prompt_tokens", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
        title="Prompt tokens",
    ),
    _stat(
        "counter",
        "octavo_prompt_tokens_cached",
        "cached_tokens",
        "Tokens of prompts that were found in the prefix cache.",
        vllm=("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        title="Prompt tokens from the cache",
    ),
    _stat(
        "counter",
        "octavo_prompt_tokens_stateless",
        "stateless_tokens",
        "Tokens of prompts whose keys and values were found, but no state of recurrent layers: they were computed.",
    ),
    _stat(
        "counter",
        "octavo_prompt_tokens_windowless",
        "windowless_tokens",
        "Tokens of prompts whose keys and values were found, but for those of a window before: they were computed.",
    ),
    _stat(
        "counter",
        "octavo_generation_tokens",
        "generated_tokens",
        "Tokens generated.",
        vllm=("vllm:generation_tokens",),
        title="Generated tokens",
    ),
    _stat("counter", "octavo_engine_steps", "steps", "Steps of the engine."),
    _stat("counter", "octavo_engine_tokens_decoded", "decoded_tokens", "Tokens that steps computed in decodes."),
    _stat("counter", "octavo_engine_tokens_prefilled", "prefilled_tokens", "Tokens that steps computed of prompts."),
    _stat(
        "counter",
        "octavo_spec_decode_num_draft_tokens",
        "drafted_tokens",
        "Tokens that were guessed and verified.",
        vllm=("vllm:spec_decode_num_draft_tokens",),
    ),
    _stat(
        "counter",
        "octavo_spec_decode_num_accepted_tokens",
        "accepted_tokens",
        "Guessed tokens that were right.",
        vllm=("vllm:spec_decode_num_accepted_tokens",),
    ),
    _stat(
        "counter", "octavo_tokens_recomputed", "recomputed_tokens", "Tokens that were computed again after preemptions."
    ),
    _stat(
        "counter",
        "octavo_tokens_restored",
        "restored_tokens",
        "Tokens that came back from CPU memory.",
    ),
    Metric(
        name="octavo_engine_seconds",
        kind="counter",
        text="Where the engine's time went.",
        labels=(MODEL, "phase"),
        known=every(("plan", "launch", "wait", "commit", "idle")),
        unit="seconds",
        stat="seconds",
        panel=Panel(
            row="Workers",
            title="Engine's time",
            expression="sum by (phase) (rate(octavo_engine_seconds_total[5m]))",
            legend="phase",
            unit="percentunit",
        ),
    ),
)
"""Metrics that are figures of `WorkerStats`."""

WORKER_SCRIPT_CALLS = Metric(
    name="octavo_worker_script_call_seconds",
    kind="summary",
    text="Round trips of the worker's script calls.",
    labels=(MODEL, "script", "outcome"),
    known=every(("append", "claim", "finish", "heartbeat", "reap", "release"), ("ok",)),
    unit="seconds",
)


def _of_jobs(name: str, text: str, bounds: tuple[float, ...], unit: str, **more: Panel | tuple[Alert, ...]) -> Metric:
    panel, alerts = more.get("panel"), more.get("alerts", ())
    assert panel is None or isinstance(panel, Panel)
    assert isinstance(alerts, tuple)
    suffix = name.removeprefix("octavo_")
    return Metric(
        name=name,
        kind="histogram",
        text=text,
        labels=_BY_MODEL,
        unit=unit,
        buckets=bounds,
        vllm=(f"vllm:{suffix}",),
        panel=panel,
        alerts=alerts,
    )


QUEUE_TIME = _of_jobs(
    "octavo_request_queue_time_seconds",
    "From a job's acceptance to the first claim of it.",
    buckets.QUEUE,
    "seconds",
    panel=Panel(row="Jobs", title="Time in the queue, 95 %"),
)
PREFILL_TIME = _of_jobs(
    "octavo_request_prefill_time_seconds",
    "From a worker's claim of a job to the first token there.",
    buckets.REQUEST,
    "seconds",
    panel=Panel(row="Jobs", title="Prefill, 95 %"),
)
DECODE_TIME = _of_jobs(
    "octavo_request_decode_time_seconds",
    "From the first to the last token of a job at the worker that ended it.",
    buckets.REQUEST,
    "seconds",
    panel=Panel(row="Jobs", title="Decode, 95 %"),
)
FIRST_TOKEN = _of_jobs(
    "octavo_time_to_first_token_seconds",
    "From a job's acceptance to its first token; of a job that was taken over only where that worker had it.",
    buckets.FIRST_TOKEN,
    "seconds",
    panel=Panel(row="Jobs", title="First token, 95 %"),
    alerts=(
        Alert(
            name="OctavoFirstTokenLate",
            expression="histogram_quantile(0.95, sum by (le, model_name) (rate("
            "octavo_time_to_first_token_seconds_bucket[5m]))) > 10",
            minutes=10,
            severity="warning",
            summary="One in twenty jobs of {{ $labels.model_name }} has its first token after more than ten seconds.",
            step="Compare time in the queue with prefill: add workers for the first, shorten prompts for the second.",
        ),
    ),
)
TOKEN_TIME = _of_jobs(
    "octavo_request_time_per_output_token_seconds",
    "Mean time between a job's tokens at the worker that ended it.",
    buckets.TOKEN,
    "seconds",
    panel=Panel(row="Jobs", title="Time per token, 95 %"),
)
LATENCY = _of_jobs(
    "octavo_e2e_request_latency_seconds",
    "From a job's acceptance to its last token.",
    buckets.REQUEST,
    "seconds",
    panel=Panel(row="Jobs", title="Whole jobs, 95 %"),
)
PROMPT_TOKENS = _of_jobs("octavo_request_prompt_tokens", "Tokens of a job's prompt.", buckets.TOKENS, "tokens")
GENERATION_TOKENS = _of_jobs(
    "octavo_request_generation_tokens", "Tokens of a job's answer, of all its sequences.", buckets.TOKENS, "tokens"
)
MOST_GENERATION_TOKENS = _of_jobs(
    "octavo_request_max_num_generation_tokens",
    "Tokens of the longest sequence of a job.",
    buckets.TOKENS,
    "tokens",
)
SUCCESS = Metric(
    name="octavo_request_success",
    kind="counter",
    text="Sequences of completed jobs, by why they ended.",
    labels=(MODEL, "finished_reason"),
    known=every(("stop", "length", "abort")),
    vllm=("vllm:request_success",),
    panel=Panel(row="Jobs", title="Sequences completed", unit="reqps"),
)

WORKER = (
    *(READY, *STATS, WORKER_SCRIPT_CALLS, QUEUE_TIME, PREFILL_TIME, DECODE_TIME, FIRST_TOKEN, TOKEN_TIME, LATENCY),
    *(PROMPT_TOKENS, GENERATION_TOKENS, MOST_GENERATION_TOKENS, SUCCESS),
)
