"""Every tiny model is built, saved and loaded once a test process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from gpus import devices
from transformers import PreTrainedModel
from transformers.utils import logging

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.model.errors import UnsupportedModel

from .hybrid import HYBRID
from .mixed import MIXED
from .tiny import CONTEXT
from .zoo import save


@dataclass(frozen=True)
class Pair:
    """The same weights twice: transformers' model (the oracle) and our runner."""

    folder: Path
    oracle: PreTrainedModel
    runner: ModelRunner


@pytest.fixture(scope="session", params=devices())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    return loader(tmp_path_factory, request.param)


@pytest.fixture(scope="session", params=devices(pytest.mark.beyond_plain))
def host_reading_pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Pair]:
    """Where attention reads blocks of the host's memory."""
    return loader(tmp_path_factory, request.param)


@pytest.fixture(scope="session")
def cpu_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    return loader(tmp_path_factory, "cpu")


def loader(tmp_path_factory: pytest.TempPathFactory, device: str) -> Callable[[str], Pair]:
    logging.disable_progress_bar()

    @cache
    def load(name: str) -> Pair:
        folder = tmp_path_factory.mktemp(name)
        oracle = save(name, folder)
        options = ModelOptions(
            model=str(folder),
            device=device,
            dtype="float32",
            max_model_len=CONTEXT,
            num_blocks=513,
            max_running=64,
            host_cache_bytes=4 << 20,
            threads=1,
        )
        try:
            return Pair(folder, oracle, load_runner(options))
        except UnsupportedModel as refusal:
            if device == "cpu" or name not in MIXED | HYBRID:
                raise
            pytest.skip(f"in float32 a GPU runs mixtures by transformers' code, and no recurrent layers: {refusal}")

    return load
