"""Names of what is stored: a file's content, and the parts of a batch's output."""

from __future__ import annotations

FILES = "files"
PARTS = "parts"


def file_name(file_id: str) -> str:
    return f"{FILES}/{file_id}"


def parts_folder(batch_id: str) -> str:
    return f"{PARTS}/{batch_id}"


def part_names(batch_id: str, part: str) -> tuple[str, str]:
    """The names of a part's two files: its answers, and its errors."""
    return f"{parts_folder(batch_id)}/{part}.out", f"{parts_folder(batch_id)}/{part}.err"
