"""A metric as a value, with its panel and its alerts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary"]

MODEL = "model_name"
"""The label of a model, always the first of its metric."""

PRIORITIES = ("high", "normal", "batch")


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A rule: `expression` is true for `minutes` in a row. `summary` is what an operator reads first, `step` what to do
    first."""

    name: str
    expression: str
    minutes: int
    severity: Literal["warning", "critical"]
    summary: str
    step: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A place on the dashboard: its row and title. Without `expression` the metric's kind says what is drawn. `legend`
    is a label's name."""

    row: str
    title: str
    expression: str = ""
    legend: str = MODEL
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. `name` is without the suffixes that Prometheus adds to samples.

    `known` are the sets of label values that exist from the start, without that of `model_name`, which each process
    adds for the models that it knows. `stat` names the attribute or method of `WorkerStats` that has the value. `vllm`
    are the names that dashboards made for vLLM ask for.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()
    stat: str = ""
    vllm: tuple[str, ...] = ()
    panel: Panel | None = None
    alerts: tuple[Alert, ...] = ()

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        match self.kind:
            case "counter":
                return (f"{self.name}_total",)
            case "histogram":
                return (f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum")
            case "summary":
                return (f"{self.name}_count", f"{self.name}_sum")
            case _:
                return (self.name,)

    @property
    def is_by_model(self) -> bool:
        return self.labels[:1] == (MODEL,)

    def sets(self, model: str = "") -> list[tuple[str, ...]]:
        """The sets of label values that exist from the start, for one model where it is by model."""
        if not self.is_by_model:
            return list(self.known)
        rest = self.known if len(self.labels) > 1 else ((),)
        return [(model, *values) for values in rest]


def every(*values: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """All sets of one value each."""
    return tuple(product(*values))
