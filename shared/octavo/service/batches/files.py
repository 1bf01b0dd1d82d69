"""The files of `octavo batch`: requests as editors and shells write them, answers as an earlier run left them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from octavo.dialects.openai.batch.answers import ID_PREFIX, encode, is_success
from octavo.service.batches.lines import BatchLine
from octavo.service.console import err
from octavo.terms import text_files
from octavo.terms.errors import OctavoError


class BatchFileError(OctavoError):
    """A file of a batch that cannot be used. The message says what to do."""

    code = "batch_file"


_BEGINNING = f'{{"id": "{ID_PREFIX}'
"""Beginning of every answer as it is written."""


def read_lines(path: Path) -> list[str]:
    """The lines of a text file. Raises `BatchFileError` for a file that is no text."""
    try:
        return text_files.read_lines(path)
    except ValueError as error:
        raise BatchFileError(str(error)) from None


def kept_answers(target: Path, lines: Sequence[BatchLine]) -> tuple[set[str], str]:
    """The ids of the answers that an earlier run gave, and the text that the file should have.

    Failures, a torn last line and answers to requests that have changed since are not in it. An answer follows its line
    to another custom_id. A file that holds anything else than answers is left alone: `BatchFileError`.
    """
    custom_ids = {line.id: line.custom_id for line in lines}
    present = set(custom_ids.values())
    kept: dict[str, dict[str, Any]] = {}
    outdated = 0
    for answer in _answers(target):
        if not is_success(answer):
            continue
        if answer["id"] in custom_ids:
            answer["custom_id"] = custom_ids[answer["id"]]
        elif answer["custom_id"] in present:
            outdated += 1
            continue
        kept[answer["id"]] = answer
    if outdated:
        old = target.with_name(f"{target.name}.old")
        shutil.copyfile(target, old)
        err.print(f"{outdated} answers in {target} were to other requests; they are kept in {old}")
    return set(kept), "".join(encode(answer) for answer in kept.values())


def _answers(target: Path) -> Iterator[dict[str, Any]]:
    lines = [line for line in read_lines(target) if line]
    for number, line in enumerate(lines, 1):
        try:
            answer = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            is_torn = number == len(lines) and _BEGINNING.startswith(line[: len(_BEGINNING)])
            if is_torn or line.startswith(_BEGINNING):
                continue
            answer = None
        if not _is_answer(answer):
            raise BatchFileError(f"{target} holds something else than answers: name another file")
        yield answer


def _is_answer(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and str(value.get("id")).startswith(ID_PREFIX)
        and isinstance(value.get("custom_id"), str)
        and "response" in value
    )
