"""The figures as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(report: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _batches(report["batches"], folder / "batches.png")
    _sharing(report["sharing"], folder / "sharing.png")
    _block_sizes(report["block_sizes"], folder / "block_sizes.png")
    _prefixes(report["prefix_hit_rates"], folder / "prefix_hit_rates.png")


def _save(path: Path) -> None:
    plt.tight_layout()
    plt.savefig(path, dpi=110)
    plt.close()


def _batches(figures: dict[str, Any], path: Path) -> None:
    _, axes = plt.subplots(2, len(figures), figsize=(4.5 * len(figures), 7), squeeze=False)
    for column, (trace, policies) in enumerate(figures.items()):
        for row, (key, title) in enumerate((("mean_batch", "sequences in the batch"), ("waste", "memory wasted"))):
            bars = axes[row][column].bar(
                [name.replace("_", "\n") for name in policies], [p[key] for p in policies.values()]
            )
            axes[row][column].bar_label(bars)
            axes[row][column].set_title(f"{trace}: {title}")
    _save(path)


def _sharing(figures: dict[str, Any], path: Path) -> None:
    for trace, kinds in figures.items():
        for kind, by_width in kinds.items():
            shares = [100 * share for share in by_width.values()]
            plt.plot([int(n) for n in by_width], shares, marker="o", label=f"{trace}, {kind.replace('_', ' ')}")
    plt.xlabel("sequences or beams")
    plt.ylabel("memory saved by sharing, %")
    plt.ylim(0)
    plt.legend()
    _save(path)


def _block_sizes(figures: dict[str, Any], path: Path) -> None:
    for trace, by_size in figures.items():
        for key in ("waste", "saved_by_sharing_n4"):
            shares = [100 * row[key] for row in by_size.values()]
            plt.plot([int(size) for size in by_size], shares, marker="o", label=f"{trace}, {key.replace('_', ' ')}")
    plt.xscale("log", base=2)
    plt.xlabel("tokens a block")
    plt.ylabel("%")
    plt.legend()
    _save(path)


def _prefixes(figures: dict[str, Any], path: Path) -> None:
    for trace, rates in figures.items():
        shares = {float(share): rate for share, rate in rates.items() if share[0].isdigit()}
        (line,) = plt.plot([100 * share for share in shares], list(shares.values()), marker="o", label=trace)
        plt.axhline(rates["unlimited"], linestyle=":", color=line.get_color())
    plt.xscale("log", base=2)
    plt.xlabel("pool, % of the distinct blocks of the trace")
    plt.ylabel("tokens served from the cache")
    plt.ylim(0)
    plt.legend()
    _save(path)
