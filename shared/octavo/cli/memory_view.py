"""A worker's KV memory on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from octavo.terms.stats import PREEMPTION_REASONS
from octavo.terms.workers import CELL_STATES, WorkerMemory

_MARKS = {
    "p": ("◆", "magenta"),
    "u": ("█", "cyan"),
    "c": ("░", "yellow"),
    "q": ("▒", "red"),
    ".": ("·", "bright_black"),
    "-": (" ", "default"),
}
_SHARED = "bold green"  # its mark is the reference count


def memory_panel(memory: WorkerMemory, width: int) -> RenderableType:
    """The block map with what it means, in `width` columns."""
    room = max(20, width - 4)
    lines = [*_rows(memory.cells, memory.cell_references, room), _legend(memory)]
    if memory.windows:
        lines += [Text(), *_rows(memory.window_cells, memory.window_references, room), _windows(memory)]
    if memory.states:
        lines += [Text(), *_rows(memory.state_cells, memory.state_references, room), _states(memory)]
    if memory.host["total"]:
        lines += [Text(), *_rows(memory.host_cells, (), room), _host(memory)]
    lines += [Text(), _tokens(memory), _preemptions(memory)]
    title = f"{memory.worker}  {memory.model}, {memory.block_size} tokens a block in {memory.kv_dtype}"
    return Panel(Group(*lines), title=title, title_align="left", width=width)


def _rows(cells: str, references: tuple[int, ...], width: int) -> Iterable[Text]:
    for start in range(0, len(cells), width):
        row = Text(no_wrap=True)
        for position in range(start, min(start + width, len(cells))):
            row.append(*_mark(cells[position], references[position] if references else 1))
        yield row


def _mark(state: str, references: int) -> tuple[str, str]:
    if state == "s":
        return str(references) if references < 10 else "+", _SHARED
    return _MARKS[state]


def _uses(counts: dict[str, int], what: str) -> Text:
    line = Text(f"{counts['total']:,} {what}: ", style="bold")
    for state, name in reversed(CELL_STATES.items()):
        if name not in counts:
            continue
        mark, style = ("2", _SHARED) if state == "s" else _MARKS[state]
        line.append(f" {mark} ", style).append(f"{name} {counts[name]:,} ", "default not bold")
    return line


def _windows(memory: WorkerMemory) -> Text:
    return _beside(memory.windows, "blocks of layers with a window", "windowless_tokens", "of a window's keys")


def _states(memory: WorkerMemory) -> Text:
    return _beside(memory.states, "slots for states", "stateless_tokens", "of a state")


def _beside(counts: dict[str, int], what: str, missed_of: str, lack: str) -> Text:
    """Uses of a kind of memory beside the first blocks."""
    line = _uses(counts, what)
    if counts["host"]:
        line.append(f" in CPU memory {counts['host']:,}, free {counts['host_free']:,}", "default not bold")
    missed = counts[missed_of]
    return line.append(f"  {missed:,} tokens computed for want {lack}", "default not bold") if missed else line


def _legend(memory: WorkerMemory) -> Text:
    line = _uses(memory.blocks, "blocks")
    if memory.sharing:
        shares = ", ".join(f"{blocks:,} by {references} owners" for references, blocks in memory.sharing[:4])
        line.append(f" ({shares}{', ...' if len(memory.sharing) > 4 else ''})", "default not bold")
    return line


def _host(memory: WorkerMemory) -> Text:
    host = memory.host
    line = Text(f"{host['total']:,} blocks in CPU memory: ", style="bold")
    return line.append(f" used {host['used']:,}  free {host['free']:,}", "default not bold")


def _tokens(memory: WorkerMemory) -> Text:
    tokens = memory.tokens
    share = tokens["cached"] / tokens["prompt"] if tokens["prompt"] else 0.0
    line = Text("prompts: ", style="bold")
    said = f"{tokens['prompt']:,} tokens, {tokens['cached']:,} found in the cache ({share:.0%}); after preemptions "
    said += f"{tokens['restored']:,} restored, {tokens['recomputed']:,} recomputed"
    return line.append(said, "default not bold")


def _preemptions(memory: WorkerMemory) -> Text:
    line = Text("preempted: ", style="bold")
    counts = ((PREEMPTION_REASONS.get(reason, reason), count) for reason, count in memory.preemptions.items())
    said = "; ".join(f"{count:,} {why}" for why, count in counts if count)
    return line.append(said or "nothing", "default not bold")
