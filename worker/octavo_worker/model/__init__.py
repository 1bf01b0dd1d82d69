"""A model: its config, checkpoint, layers, shards. It never runs a step by itself and knows no runner."""

from octavo_worker.model.errors import CheckpointError, ModelError, UnsupportedModel

__all__ = ["CheckpointError", "ModelError", "UnsupportedModel"]
