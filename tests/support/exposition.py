"""Metrics as Prometheus reads them."""

from __future__ import annotations

import re


def sample(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that bear these labels."""
    found = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if re.match(rf"{name}[{{ ]", line) and all(f'{key}="{value}"' in line for key, value in labels.items())
    ]
    return sum(found)
