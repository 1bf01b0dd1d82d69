"""Shipped parts: the wheel, the Makefile, the containers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from import_rules import imported, package_of
from waiting import STALL_S

from octavo.service.clerk.settings import ClerkSettings
from octavo_gateway.settings import GatewaySettings
from octavo_worker.assembly.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]


def test_the_wheel_holds_our_three_packages_with_their_data_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=STALL_S)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"octavo", "octavo_gateway", "octavo_worker"}
    assert {
        "octavo/py.typed",
        "octavo/queue/lua/claim.lua",
        "octavo/queue/lua/lib/keys.lua",
        "octavo_gateway/page/static/index.html",
        "octavo_worker/bundled/demo/model.safetensors",
        "octavo_worker/bundled/demo/chat_template.jinja",
    } <= set(names)
    assert wheel.stat().st_size < 16e6


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("shared/octavo", ("cli", "celery", "local", "grammar", "clerk", "objects", "otel")),
        ("gateway/octavo_gateway", ("gateway", "cli", "grammar")),
        ("worker/octavo_worker", ("worker", "cli", "bench", "grammar")),
    ],
)
def test_every_package_that_is_imported_is_declared(folder: str, extras: tuple[str, ...]) -> None:
    requirements = [
        *PROJECT["dependencies"],
        *(item for extra in extras for item in PROJECT["optional-dependencies"][extra]),
    ]
    declared = {_normal(re.split(r"[\[><=~ ]", item)[0]) for item in requirements}
    declared |= {"starlette"} if "fastapi" in declared else set()  # fastapi's own base, re-exported by it
    distributions = packages_distributions()
    own = {"octavo", "octavo_gateway", "octavo_worker"} | set(sys.stdlib_module_names)
    modules = {
        name.split(".")[0]
        for path in (ROOT / folder).rglob("*.py")
        for name in imported(path.read_text(), package_of(path))
    }
    undeclared = {
        name for name in modules - own if not declared & {_normal(item) for item in distributions.get(name, [name])}
    }
    assert undeclared == set()


def test_every_extra_of_a_command_is_named_in_the_entry_points() -> None:
    points = PROJECT["entry-points"]["octavo.commands"]
    assert {"gateway", "worker", "clerk"} <= points.keys()
    for target in points.values():
        module, _, name = target.partition(":")
        path = next(ROOT.glob(f"*/{module.replace('.', '/')}.py"))
        assert re.search(rf"^(def {name}\(|{name}\b.*=)", path.read_text(), flags=re.MULTILINE), target


def test_make_explains_itself_and_its_targets_are_short() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "demo | test | test-full | compiled | lint | bench" in said
    recipes = re.findall(r"^([a-z]+):[^\n]*\n((?:\t[^\n]*\n)*)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {name for name, _ in recipes} >= {"demo", "test", "lint", "bench", "clean"}
    assert all(recipe.count("\n") <= 3 for _, recipe in recipes)


def test_what_pip_cannot_bring_is_named_with_the_line_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    script = ROOT / ".ci" / "preflight"
    done = subprocess.run(["/bin/sh", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"apt-get install -y.* g\+\+ make$", done.stderr.strip())


def test_an_old_python_is_refused_by_name(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$*" in *version_info*) exit 1;; esac\necho "Python 3.9.2"\n')
    old.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = ROOT / ".ci" / "preflight"
    done = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "3.11 or newer" in done.stderr


@pytest.mark.parametrize("name", sorted(COMPOSE))
def test_every_service_is_checked_restarted_and_stopped_with_patience(name: str) -> None:
    service = COMPOSE[name]
    assert service["healthcheck"]["test"]
    assert service["restart"] == "unless-stopped"
    assert _seconds(service["stop_grace_period"]) >= 10


def test_workers_can_be_scaled_and_get_their_grace() -> None:
    worker = COMPOSE["worker"]
    assert "ports" not in worker, "a fixed port stops --scale"
    assert "container_name" not in worker, "a fixed name stops --scale"
    assert _seconds(worker["stop_grace_period"]) > WorkerSettings.model_fields["grace"].default
    assert worker["depends_on"]["server"]["condition"] == "service_healthy"


def test_the_server_keeps_what_it_is_given() -> None:
    options = " ".join(COMPOSE["server"]["command"])
    assert "--appendonly yes" in options
    assert "--maxmemory-policy noeviction" in options
    assert COMPOSE["server"]["volumes"]


def test_compose_builds_targets_that_exist_and_sets_variables_that_are_settings() -> None:
    cuda = yaml.safe_load((ROOT / "deploy" / "compose.cuda.yaml").read_text())["services"]
    builds = [service["build"] for service in [*COMPOSE.values(), *cuda.values()] if "build" in service]
    assert len(builds) == 3
    for build in builds:
        dockerfile = (ROOT / build["dockerfile"]).read_text()
        assert re.search(rf"^FROM \S+ AS {build['target']}$", dockerfile, flags=re.MULTILINE)
        assert (ROOT / "deploy" / build["context"]).resolve() == ROOT
    of_gateway = GatewaySettings.model_fields | ClerkSettings.model_fields  # its clerk has its environment
    for service, settings in (("worker", WorkerSettings.model_fields), ("gateway", of_gateway)):
        for variable in COMPOSE[service]["environment"]:
            assert variable == "REDIS_URL" or variable.removeprefix("OCTAVO_").lower() in settings


def test_compose_opens_no_port_without_a_key() -> None:
    published = {name: service["ports"] for name, service in COMPOSE.items() if "ports" in service}
    assert published.keys() == {"gateway", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for name in ("prometheus", "grafana") for port in published[name])
    assert all(port.startswith("${OCTAVO_ADDRESS:-127.0.0.1}:") for port in published["gateway"])
    assert COMPOSE["gateway"]["environment"]["OCTAVO_API_KEYS"].startswith("${OCTAVO_API_KEYS:?")


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_images_run_as_a_user_and_stop_on_sigterm(name: str) -> None:
    stages = re.split(r"^FROM ", (ROOT / "deploy" / name).read_text(), flags=re.MULTILINE)[1:]
    final = [stage for stage in stages if "CMD" in stage]
    assert final
    assert all("USER octavo" in stage for stage in final)
    assert "STOPSIGNAL SIGTERM" in (ROOT / "deploy" / name).read_text()
    assert 'ENTRYPOINT ["octavo"]' in (ROOT / "deploy" / name).read_text()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _seconds(duration: Any) -> int:
    return int(ast.literal_eval(str(duration).removesuffix("s")))
