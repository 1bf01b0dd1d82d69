"""The documentation says what the code does: its examples run, its tables and links hold."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import settings_table
from cli_driver import Up
from waiting import STALL_S

import octavo.terms.errors
from octavo import Client
from octavo.cli.listed import LISTED
from octavo.dialects.openai.problems import _STATUSES
from octavo.queue.roles import ROLES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def test_the_rule_of_each_role_is_what_it_needs() -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    documented = re.search(r"```text\n(ACL SETUSER.*?)```", text, flags=re.DOTALL)
    assert documented is not None
    assert documented[1].split() == " ".join(f"ACL SETUSER octavo-{role.name} {role.rule}" for role in ROLES).split()


@pytest.mark.full
@pytest.mark.parametrize("language", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("node", "go")])
def test_the_readers_in_other_languages_answer(up: Up, language: str) -> None:
    """The commands of docs/wire.md, on a real model."""
    text = (ROOT / "docs/wire.md").read_text()
    documented = re.search(r"```sh\n(node .*)\n```\n\n```sh go\n(cd .*)\n```", text)
    assert documented is not None
    service = json.loads((up.cli.state_dir / "up.json").read_text())
    environment = os.environ | {"OCTAVO_GATEWAY": f"http://127.0.0.1:{up.port}", "REDIS_URL": service["redis_url"]}

    def run(command: str) -> tuple[str, list[str]]:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=STALL_S,
            check=True,
        )
        return done.stdout, done.stderr.splitlines()

    submit, follow = documented.groups()
    if language == "go":
        submit = re.sub(r"^node \S+", "cd docs/examples/go && go run .", submit)
    else:
        follow = re.sub(r"^cd .* run \.", "node docs/examples/node/main.mjs", follow)
    whole, (job_id, *_, end) = run(submit)
    rest, _ = run(re.sub(r"g00_\w+", job_id, follow))
    with Client(service["redis_url"]) as client:
        job = client.job(job_id)
        assert whole == job.result().text
        assert json.loads(end)["usage"]["completion_tokens"] == job.result().usage.completion_tokens > 0
        assert rest == "".join(event.text for event in job.stream(after=20))


def test_every_setting_is_in_the_table_as_it_is_in_the_code() -> None:
    text = settings_table.DOCUMENT.read_text()
    assert "`OCTAVO_TOKEN_BUDGET`" in text
    assert text == settings_table.document(text), "rewrite it: python tests/support/settings_table.py"


def test_every_error_is_in_the_table_with_its_code_and_status() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    statuses = dict(_STATUSES)
    classes = [
        item
        for _, item in inspect.getmembers(octavo.terms.errors, inspect.isclass)
        if item.__module__ == "octavo.terms.errors"
    ]
    assert len(classes) > 5
    for kind in classes:
        if kind is not octavo.terms.errors.OctavoError:
            status = statuses.get(kind, "")
            assert f"| `{kind.__name__}` | `{kind.code}` |{f' {status} ' if status else ' '}|" in text


def test_every_command_that_is_named_exists() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"`octavo ([a-z]+)", path.read_text())}
    assert {"up", "run", "jobs", "batch"} <= named
    assert named <= LISTED.keys()


def anchors(document: Path) -> set[str]:
    """The headings of a document as GitHub names them in links."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_make_targets_exist(path: Path) -> None:
    text = path.read_text()
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
        target = path.parent / link if link else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), anchor
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(
        r"`?make ([a-z]+)\b(?! and)", " ".join(re.findall(r"`make [^`]+`|^make .*$", text, flags=re.MULTILINE))
    ):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
