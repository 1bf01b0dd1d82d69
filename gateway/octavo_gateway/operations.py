"""Names and examples of the API's operations, for its description of itself: what `/docs` shows and generators read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ASKED = [{"role": "user", "content": "What is love?"}]
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
_WEATHER = {"name": "get_weather", "description": "The weather of a city", "parameters": _PARAMETERS}
_JOB = "g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"
_EXAMPLES_OF_PATHS = {
    "job_id": _JOB,
    "response_id": f"resp_{_JOB}",
    "chat_id": "chat-1",
    "name": "demo",
    "worker_id": "host-4711-1f2e3d",
    "rate_limit_id": "rl-demo",
    "file_id": "file-01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "batch_id": "batch_01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "project_id": "acme",
    "service_account_id": "svc_acct_01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "api_key_id": "key_01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "webhook_endpoint_id": "we_01ARZ3NDEKTSV4RRFFQ69G5FAV",
}

_LIMITS = "/v1/organization/projects/{project_id}/rate_limits"
_HOOK = "/v1/webhook_endpoints/{webhook_endpoint_id}"


@dataclass(frozen=True)
class Operation:
    """`id` is unique; `examples` are bodies by what they show."""

    id: str
    summary: str
    examples: Mapping[str, dict[str, Any]] = field(default_factory=dict)


_PROJECT = "/v1/organization/projects/{project_id}"
_ACCOUNT = f"{_PROJECT}/service_accounts/{{service_account_id}}"
_KEY = f"{_PROJECT}/api_keys/{{api_key_id}}"

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("post", "/v1/jobs"): Operation(
        "submitJob",
        "Submit a job",
        {
            "a prompt": {"model": "demo", "prompt": "JULIET:", "sampling": {"max_tokens": 40, "seed": 7}},
            "a conversation": {"model": "demo", "messages": _ASKED, "sampling": {"max_tokens": 40}, "priority": "high"},
            "a choice": {
                "model": "demo",
                "prompt": "To be or not to be? Answer: ",
                "grammar": {"kind": "choice", "text": ["to be", "not to be"]},
            },
        },
    ),
    ("get", "/v1/jobs"): Operation("listJobs", "List jobs"),
    ("get", "/v1/jobs/{job_id}"): Operation("getJob", "Look at a job"),
    ("delete", "/v1/jobs/{job_id}"): Operation("cancelJob", "Cancel a job"),
    ("get", "/v1/jobs/{job_id}/result"): Operation("getJobResult", "Get a job's result"),
    ("get", "/v1/jobs/{job_id}/stream"): Operation("streamJob", "Stream a job's tokens"),
    ("get", "/v1/jobs/{job_id}/log"): Operation("readJobLog", "Read a job's log"),
    ("post", "/v1/jobs/{job_id}/token"): Operation(
        "createReadToken", "Let a page read one job", {"ten minutes": {"seconds": 600}}
    ),
    ("post", "/v1/chat/completions"): Operation(
        "createChatCompletion",
        "Create a chat completion",
        {
            "an answer": {"model": "demo", "messages": _ASKED, "max_tokens": 40},
            "a stream": {"model": "demo", "messages": _ASKED, "max_tokens": 40, "stream": True},
            "a tool call": {
                "model": "demo",
                "messages": _ASKED,
                "tools": [{"type": "function", "function": _WEATHER}],
                "tool_choice": "required",
            },
            "a JSON object": {
                "model": "demo",
                "messages": _ASKED,
                "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": _PARAMETERS}},
            },
        },
    ),
    ("post", "/v1/completions"): Operation(
        "createCompletion",
        "Create a completion",
        {"an answer": {"model": "demo", "prompt": "ROMEO:", "max_tokens": 40}},
    ),
    ("post", "/v1/responses"): Operation(
        "createResponse",
        "Create a response",
        {
            "an answer": {"model": "demo", "input": "What is love?", "max_output_tokens": 40},
            "in the background": {
                "model": "demo",
                "input": "What is love?",
                "max_output_tokens": 40,
                "background": True,
            },
        },
    ),
    ("get", "/v1/responses/{response_id}"): Operation("getResponse", "Get a response, or its events"),
    ("delete", "/v1/responses/{response_id}"): Operation("deleteResponse", "Delete a response"),
    ("post", "/v1/responses/{response_id}/cancel"): Operation("cancelResponse", "Cancel a response"),
    ("get", "/v1/responses/{response_id}/input_items"): Operation("listInputItems", "List a response's input"),
    ("post", "/v1/files"): Operation("createFile", "Upload a file"),
    ("get", "/v1/files"): Operation("listFiles", "List files"),
    ("get", "/v1/files/{file_id}"): Operation("retrieveFile", "Look at a file"),
    ("delete", "/v1/files/{file_id}"): Operation("deleteFile", "Delete a file"),
    ("get", "/v1/files/{file_id}/content"): Operation("downloadFile", "Download a file's content"),
    ("post", "/v1/batches"): Operation(
        "createBatch",
        "Create a batch",
        {
            "a day": {
                "input_file_id": "file-01ARZ3NDEKTSV4RRFFQ69G5FAV",
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
        },
    ),
    ("get", "/v1/batches"): Operation("listBatches", "List batches"),
    ("get", "/v1/webhook_event_types"): Operation("listWebhookEventTypes", "List types of events"),
    ("post", "/v1/webhook_endpoints"): Operation(
        "createWebhookEndpoint",
        "Create a webhook endpoint",
        {
            "ends of batches": {
                "name": "nightly",
                "url": "https://example.com/hooks",
                "event_types": ["batch.completed", "batch.failed"],
            }
        },
    ),
    ("get", "/v1/webhook_endpoints"): Operation("listWebhookEndpoints", "List webhook endpoints"),
    ("get", _HOOK): Operation("retrieveWebhookEndpoint", "Look at a webhook endpoint"),
    ("post", _HOOK): Operation(
        "updateWebhookEndpoint", "Change a webhook endpoint", {"another name": {"name": "weekly"}}
    ),
    ("delete", _HOOK): Operation("deleteWebhookEndpoint", "Delete a webhook endpoint"),
    ("post", f"{_HOOK}/rotate_secret"): Operation(
        "rotateWebhookSecret",
        "Give an endpoint another secret",
        {"both sign for a day": {"keep_old_secret_active_for_24_hours": True}},
    ),
    ("post", f"{_HOOK}/test"): Operation(
        "testWebhookEndpoint", "Send a sample event", {"an event": {"event_type": "batch.completed"}}
    ),
    ("get", f"{_HOOK}/deliveries"): Operation("listWebhookDeliveries", "List deliveries of an endpoint"),
    ("post", f"{_HOOK}/resend"): Operation(
        "resendWebhookDeliveries", "Send again what failed to the end", {"all of it": {}}
    ),
    ("get", "/v1/batches/{batch_id}"): Operation("retrieveBatch", "Look at a batch"),
    ("post", "/v1/batches/{batch_id}/cancel"): Operation("cancelBatch", "Cancel a batch"),
    ("get", "/v1/models"): Operation("listModels", "List models"),
    ("get", "/v1/models/{name}"): Operation("getModel", "Look at a model"),
    ("post", "/v1/chat"): Operation(
        "answerUiChat",
        "Answer a chat of the AI SDK",
        {
            "an answer": {
                "id": "chat-1",
                "model": "demo",
                "max_tokens": 40,
                "messages": [{"role": "user", "parts": [{"type": "text", "text": "What is love?"}]}],
            }
        },
    ),
    ("get", "/v1/chat/{chat_id}/stream"): Operation("resumeUiChat", "Resume a chat's stream"),
    ("delete", "/v1/chat/{chat_id}/stream"): Operation("stopUiChat", "Stop a chat's answer"),
    ("post", "/v1/messages"): Operation(
        "createMessage",
        "Create a message",
        {
            "an answer": {"model": "demo", "max_tokens": 40, "messages": _ASKED},
            "a tool call": {
                "model": "demo",
                "max_tokens": 200,
                "messages": _ASKED,
                "tools": [{"name": "get_weather", "input_schema": _PARAMETERS}],
                "tool_choice": {"type": "any"},
            },
        },
    ),
    ("post", "/v1/messages/count_tokens"): Operation(
        "countMessageTokens", "Count a message's tokens", {"a question": {"model": "demo", "messages": _ASKED}}
    ),
    ("post", "/tokenize"): Operation(
        "tokenize",
        "Tokenize a prompt",
        {"a prompt": {"model": "demo", "prompt": "ROMEO:"}, "a conversation": {"model": "demo", "messages": _ASKED}},
    ),
    ("post", "/detokenize"): Operation(
        "detokenize", "Turn tokens into text", {"tokens": {"model": "demo", "tokens": [82, 79, 77]}}
    ),
    ("get", _LIMITS): Operation("listRateLimits", "List a tenant's limits"),
    ("post", f"{_LIMITS}/{{rate_limit_id}}"): Operation(
        "updateRateLimit",
        "Change a tenant's limits",
        {
            "a minute": {"max_requests_per_1_minute": 600, "max_tokens_per_1_minute": 60_000},
            "beyond OpenAI's": {"octavo": {"waiting": 1000, "tokens_per_day": None}},
        },
    ),
    ("get", "/v1/organization/usage/completions"): Operation("getUsage", "Get what tenants have used"),
    ("get", "/v1/workers"): Operation("listWorkers", "List live workers"),
    ("get", "/v1/workers/{worker_id}/memory"): Operation("getWorkerMemory", "Look at a worker's KV cache"),
    ("get", "/v1/organization/projects"): Operation("listProjects", "List projects"),
    ("post", "/v1/organization/projects"): Operation(
        "createProject", "Create a project", {"a tenant": {"name": "Acme", "octavo": {"id": "acme"}}}
    ),
    ("get", _PROJECT): Operation("retrieveProject", "Look at a project"),
    ("post", _PROJECT): Operation("renameProject", "Rename a project", {"a name": {"name": "Acme Inc."}}),
    ("post", f"{_PROJECT}/archive"): Operation("archiveProject", "End a project"),
    ("get", f"{_PROJECT}/service_accounts"): Operation("listServiceAccounts", "List service accounts"),
    ("post", f"{_PROJECT}/service_accounts"): Operation(
        "createServiceAccount",
        "Create a service account and its first key",
        {"confined": {"name": "nightly", "octavo": {"scopes": ["jobs:write"], "models": ["demo"]}}},
    ),
    ("get", _ACCOUNT): Operation("retrieveServiceAccount", "Look at a service account"),
    ("post", _ACCOUNT): Operation("renameServiceAccount", "Rename a service account", {"a name": {"name": "daily"}}),
    ("delete", _ACCOUNT): Operation("deleteServiceAccount", "Delete a service account and revoke its keys"),
    ("post", f"{_ACCOUNT}/api_keys"): Operation(
        "createKey", "Create a key", {"ninety days": {"name": "nightly", "expires_in_seconds": 7_776_000}}
    ),
    ("get", f"{_PROJECT}/api_keys"): Operation("listKeys", "List keys"),
    ("get", _KEY): Operation("retrieveKey", "Look at a key"),
    ("post", _KEY): Operation("changeKey", "Change a key", {"an hour": {"expires_in_seconds": 3600}}),
    ("post", f"{_KEY}/rotate"): Operation("rotateKey", "Give a key a new secret", {"a day": {"grace_seconds": 86_400}}),
    ("delete", _KEY): Operation("revokeKey", "Revoke a key"),
    ("get", "/v1/stats"): Operation("getStats", "Look at lanes, workers, batches, dead letters and webhooks"),
    ("get", "/v1/fleet/events"): Operation("followFleet", "Follow the fleet"),
    ("get", "/v1/fleet/lanes"): Operation("listPausedLanes", "List the lanes that are paused"),
    ("post", "/v1/fleet/lanes"): Operation(
        "changeLanes",
        "Pause lanes, or let them go on",
        {
            "all of a model": {"model": "demo", "paused": True},
            "one class": {"model": "demo", "priority": "batch", "paused": False},
        },
    ),
    ("get", "/v1/fleet/dead_letters"): Operation("listDeadLetters", "List jobs that were given up"),
    ("post", "/v1/fleet/dead_letters"): Operation(
        "actOnDeadLetters",
        "Requeue or purge jobs that were given up",
        {"of a model": {"action": "requeue", "model": "demo"}, "all": {"action": "purge", "all": True}},
    ),
    ("get", "/v1/fleet/webhooks/{webhook_endpoint_id}"): Operation(
        "lookAtWebhookEndpoint", "Look at deliveries to an endpoint of any tenant"
    ),
    ("post", "/v1/fleet/webhooks/{webhook_endpoint_id}/resend"): Operation(
        "resendWebhooks", "Send again what failed to the end, for any tenant", {"all of it": {}}
    ),
    ("get", "/livez"): Operation("isAlive", "Say that the process answers"),
    ("get", "/readyz"): Operation("isReady", "Say that requests can be accepted"),
    ("get", "/ping"): Operation("ping", "Say that requests can be accepted"),
    ("get", "/health"): Operation("isHealthy", "Say that requests can be accepted"),
    ("get", "/version"): Operation("getVersion", "Say which octavo this is"),
    ("get", "/metrics"): Operation("getMetrics", "Get metrics in Prometheus' format"),
}
"""By method and path."""


def name_operations(openapi: dict[str, Any]) -> None:
    """Give every operation of an OpenAPI document its name, and its bodies and path parameters examples."""
    for path, methods in openapi["paths"].items():
        for method, described in methods.items():
            if (operation := OPERATIONS.get((method, path))) is not None:
                described |= {"operationId": operation.id, "summary": operation.summary}
                _add_examples(described, operation.examples)
            for parameter in described.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in _EXAMPLES_OF_PATHS:
                    parameter["example"] = _EXAMPLES_OF_PATHS[parameter["name"]]


def _add_examples(described: dict[str, Any], examples: Mapping[str, dict[str, Any]]) -> None:
    content = described.get("requestBody", {}).get("content", {})
    if examples and "application/json" in content:
        named = {name: {"value": value} for name, value in examples.items()}
        content["application/json"] = {**content["application/json"], "examples": named}
