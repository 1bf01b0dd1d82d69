"""Clients that others wrote. Tests of one that is not installed are not collected: `pip install -e ".[clients]"`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest
from serving import serving
from worker_process import WorkerProcess

from octavo.service.server import EmbeddedServer
from octavo_gateway.settings import GatewaySettings

CLIENTS = {
    "guidellm": "test_guidellm.py",
    "instructor": "test_instructor.py",
    "langchain_anthropic": "test_langchain_anthropic.py",
    "langchain_openai": "test_langchain.py",
    "litellm": "test_litellm.py",
    "lm_eval": "test_lm_eval.py",
    "pydantic_ai": "test_pydantic_ai.py",
}

collect_ignore = [test for package, test in CLIENTS.items() if find_spec(package) is None]

if len(collect_ignore) < len(CLIENTS):
    # None of them is to look for anything but the gateway. They read this when they are imported.
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }


@pytest.fixture(scope="module")
def demo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway with a worker on the bundled model: what it writes has no sense, but is a model's."""
    log = tmp_path_factory.mktemp("demo") / "worker.log"
    flags = {"model": "demo", "dtype": "float32", "num_blocks": 2048, "threads": 1, "device": "cpu", "lease": 1.0}
    with EmbeddedServer() as server, ExitStack() as stack:
        stack.enter_context(WorkerProcess(server.url, log, **flags)).wait_ready()
        yield stack.enter_context(serving(GatewaySettings(redis_url=server.url)))
