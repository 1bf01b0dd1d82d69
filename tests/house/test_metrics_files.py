"""Files made of the table of metrics say what it says, and Prometheus takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import metrics_files
import pytest
import yaml

from octavo.terms.metrics.table import alerts, metrics

RULES = yaml.safe_load(metrics_files.RULES.read_text())["groups"][0]["rules"]
BOARD = json.loads(metrics_files.DASHBOARD.read_text())
DEPLOY = metrics_files.ROOT / "deploy"
CASES = Path(__file__).parent / "data" / "alerts.test.yaml"
WATCHED = metrics_files.DOCUMENT.read_text().partition("## What to watch")[2]
QUERIES = [
    *(rule["expr"] for rule in RULES),
    *(target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())),
    *re.findall(r"`([^`]*octavo_[a-z_]+[^`]*\)[^`]*)`", WATCHED),
]
LABELS = {sample: {*metric.labels, "le"} for metric in metrics() for sample in metric.samples}


@pytest.mark.parametrize("path", metrics_files.files(), ids=lambda path: path.name)
def test_a_file_is_what_the_table_makes_of_it(path: Path) -> None:
    expected = metrics_files.files()[path]
    assert path.read_text() == expected, "rewrite it: python tests/support/metrics_files.py"


@pytest.mark.parametrize("query", QUERIES)
def test_every_metric_and_label_of_a_query_is_in_the_table(query: str) -> None:
    names = set(re.findall(r"\boctavo_\w+", query))
    assert names
    assert names <= LABELS.keys()
    known = set.union(*(LABELS[name] for name in names))
    grouped = {name.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for name in group.split(",")}
    matched = set(re.findall(r"[{,](\w+)=", query))
    assert (grouped | matched) <= known


def test_every_part_of_the_table_has_panels_and_no_panel_lies_on_another() -> None:
    panels = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(panels) == sum(metric.panel is not None for metric in metrics()) > 20
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(panel["targets"][0]["legendFormat"] for panel in panels)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases: list[dict[str, Any]] = yaml.safe_load(CASES.read_text())["tests"]
    told = [(rule["alertname"], bool(rule["exp_alerts"])) for case in cases for rule in case["alert_rule_test"]]
    assert {name for name, fires in told if fires} == {alert.name for alert in alerts()}
    assert {name for name, fires in told if not fires} == {alert.name for alert in alerts()}


@pytest.mark.promtool
def test_prometheus_takes_the_rules_and_they_fire_as_they_should() -> None:
    for arguments in (["check", "rules", str(metrics_files.RULES)], ["test", "rules", str(CASES)]):
        done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """With a key file of this machine's in the place of the mounted one."""
    folder = shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
    config = folder / "prometheus.yaml"
    mounted = "/run/octavo/operator-key"
    assert mounted in config.read_text()
    config.write_text(config.read_text().replace(mounted, str(folder / "no-key")))
    done = subprocess.run(["promtool", "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "alerts.yaml" in done.stdout, "with the rules"


def test_grafana_finds_what_it_is_provisioned_with() -> None:
    """Files and folders that provisioning names are mounted, and panels ask datasources that exist."""
    mounts = {}
    for volume in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]["volumes"]:
        source, target, *_ = volume.split(":")
        mounts[target] = source
    assert mounts["/etc/grafana/provisioning"] == "./grafana/provisioning"
    provisioning = DEPLOY / "grafana" / "provisioning"
    providers = yaml.safe_load((provisioning / "dashboards" / "octavo.yaml").read_text())["providers"]
    boards = {Path(target).parent for target, source in mounts.items() if source.endswith(".json")}
    assert {Path(provider["options"]["path"]) for provider in providers} == boards
    sources = yaml.safe_load((provisioning / "datasources" / "octavo.yaml").read_text())["datasources"]
    known = {source["type"] for source in sources}
    asked = {
        (panel["datasource"]["type"], panel["datasource"]["uid"]) for panel in BOARD["panels"] if "targets" in panel
    }
    variables = {
        f"${{{one['name']}}}": one["query"] for one in BOARD["templating"]["list"] if one["type"] == "datasource"
    }
    assert asked
    assert all(variables.get(uid) == kind and kind in known for kind, uid in asked)
    assert sum(source["isDefault"] for source in sources) == 1


def test_the_compose_file_starts_prometheus_and_grafana_on_the_files() -> None:
    folder = DEPLOY
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    services = compose["services"]
    watching = {name: each for name, each in services.items() if each.get("profiles") == ["monitoring"]}
    assert set(watching) == {"prometheus", "grafana"}
    for each in watching.values():
        for volume in each["volumes"]:
            source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).split(":")[0]
            assert source in compose["volumes"] or (folder / source).exists(), source
    scraping = yaml.safe_load((folder / "prometheus" / "prometheus.yaml").read_text())
    assert scraping["rule_files"] == ["alerts.yaml"]
    named = {target["names"][0] for job in scraping["scrape_configs"] for target in job["dns_sd_configs"]}
    assert named <= services.keys()
    assert services["worker"]["environment"]["OCTAVO_METRICS_PORT"] == 9400
    provisioned = yaml.safe_load((folder / "grafana" / "provisioning" / "datasources" / "octavo.yaml").read_text())
    assert provisioned["datasources"][0]["url"] == "http://prometheus:9090"
