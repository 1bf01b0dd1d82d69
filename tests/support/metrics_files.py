"""Files that are made of the table of metrics: documents, dashboard, alert rules.

To rewrite them: python tests/support/metrics_files.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from octavo.terms.metrics.metric import Metric
from octavo.terms.metrics.queue import QUEUE
from octavo.terms.metrics.table import TABLE, alerts, metrics

ROOT = Path(__file__).parents[2]
DOCUMENT, OPERATIONS = ROOT / "docs" / "metrics.md", ROOT / "docs" / "operations.md"
DASHBOARD, RULES = ROOT / "deploy" / "grafana" / "octavo.json", ROOT / "deploy" / "prometheus" / "alerts.yaml"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


def expression_of(metric: Metric) -> str:
    """The expression that draws a metric with a panel."""
    assert metric.panel is not None
    if metric.panel.expression:
        return metric.panel.expression
    by = metric.labels[0] if metric.labels else ""
    is_of_queue = metric in QUEUE
    match metric.kind:
        case "histogram":
            return f"histogram_quantile(0.95, sum by (le, {by}) (rate({metric.name}_bucket[5m])))"
        case "counter":
            return f"sum by ({by}) (rate({metric.name}_total[5m]))"
        case _:
            return f"{'max' if is_of_queue else 'sum'} by ({by}) ({metric.name})"


def table(part: tuple[Metric, ...]) -> str:
    """A part of the table in Markdown."""
    lines = ["| metric | kind | unit | counts | for vLLM's dashboards |", "| --- | --- | --- | --- | --- |"]
    for metric in part:
        shown = metric.samples[0] if metric.kind in ("counter", "gauge") else metric.name
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        names = ", ".join(f"`{name}`" for name in metric.vllm)
        lines.append(f"| `{shown}{labels}` | {metric.kind} | {metric.unit} | {metric.text} | {names} |")
    return "\n".join(lines)


def document(text: str) -> str:
    """The document of metrics with its tables as the code has them now."""
    for title, part in TABLE.items():
        text = _section(text, title, table(part))
    return text


def operations(text: str) -> str:
    """The document of operations with its table of alerts as the code has it now."""
    lines = ["| alert | severity | after | meaning | first step |", "| --- | --- | --- | --- | --- |"]
    for alert in alerts():
        meaning = alert.summary.replace("{{ $labels.model_name }}", "a model").replace("{{ $labels.code }}", "a code")
        after = f"{alert.minutes} min" if alert.minutes else "at once"
        lines.append(f"| `{alert.name}` | {alert.severity} | {after} | {meaning} | {alert.step} |")
    return _section(text, "Alerts", "\n".join(lines))


def _section(text: str, title: str, rows: str) -> str:
    """`rows` in place of the first table under a heading."""
    before, heading, after = text.partition(f"## {title}\n\n")
    assert heading, title
    told, _, rest = after.partition("| ")
    _, _, rest = rest.partition("\n\n")
    return f"{before}{heading}{told}{rows}\n\n{rest}" if rest else f"{before}{heading}{told}{rows}\n"


def rules() -> str:
    """The alert rules as Prometheus reads them."""
    made = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": f"{alert.minutes}m",
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.step},
        }
        for alert in alerts()
    ]
    text: str = yaml.safe_dump({"groups": [{"name": "octavo", "rules": made}]}, sort_keys=False, width=100)
    return f"# Made by tests/support/metrics_files.py of octavo.terms.metrics.\n{text}"


def dashboard() -> str:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    drawn = [metric for metric in metrics() if metric.panel is not None]
    top = 0
    for row in dict.fromkeys(metric.panel.row for metric in drawn if metric.panel is not None):
        panels.append({"type": "row", "title": row, "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}, "panels": []})
        top += 1
        of_row = [metric for metric in drawn if metric.panel is not None and metric.panel.row == row]
        for place, metric in enumerate(of_row):
            column, line = place % _COLUMNS, place // _COLUMNS
            panels.append(_panel(metric, x=column * _WIDTH, y=top + line * _HEIGHT))
        top += -(-len(of_row) // _COLUMNS) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    board = {
        "uid": "octavo",
        "title": "octavo",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": panels,
    }
    return json.dumps(board, indent=1) + "\n"


def _panel(metric: Metric, *, x: int, y: int) -> dict[str, Any]:
    panel = metric.panel
    assert panel is not None
    unit = panel.unit or ("s" if metric.unit == "seconds" else "short")
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": metric.text,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "expr": expression_of(metric),
                "legendFormat": f"{{{{{panel.legend}}}}}" if panel.legend else panel.title,
                **({"exemplar": True} if metric.kind == "histogram" else {}),
            }
        ],
    }


def files() -> dict[Path, str]:
    """All of them, as they ought to be."""
    return {
        DOCUMENT: document(DOCUMENT.read_text()),
        OPERATIONS: operations(OPERATIONS.read_text()),
        DASHBOARD: dashboard(),
        RULES: rules(),
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
