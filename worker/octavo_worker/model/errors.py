"""Reasons why a model cannot be served. Each message says what to do next."""

from __future__ import annotations

from octavo_worker.contract.messages import StartRefused

NEXT = "serve another model (docs/engine.md says which run), or run this one by transformers itself."
"""The end of a refusal that no option can lift."""


class ModelError(StartRefused):
    """The model cannot be loaded or run as asked."""


class UnsupportedModel(ModelError):
    """Neither the generic decoder nor the transformers route can run this architecture."""


class CheckpointError(ModelError):
    """The weights on disk do not fit the config."""
