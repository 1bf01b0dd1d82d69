"""Weights, decoders and the runner. `load_runner(options)` is what the engine calls."""

from octavo_worker.model.errors import CheckpointError, ModelError, UnsupportedModel
from octavo_worker.model.loading import load_runner

__all__ = ["CheckpointError", "ModelError", "UnsupportedModel", "load_runner"]
