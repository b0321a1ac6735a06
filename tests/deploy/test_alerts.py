"""Alert rules: Prometheus takes them, each metric is one that PS tasks serve, and the runbook has each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.service.metrics import PSCollector

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULES = yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
NAMES = [rule["alert"] for rule in RULES]


def served():
    """Names of all metrics that a PS task serves -> their labels."""
    reply = pb.StatusReply(
        steps={"global_step": 1}, statistics=pb.Statistics(staleness=[1, 2]), load=pb.Load(save_age_secs=0)
    )
    found: dict[str, set[str]] = {}
    for family in PSCollector(lambda: reply).collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_names_only_what_ps_tasks_serve(rule):
    metrics = served()
    named = set(re.findall(r"\bglobalstep_\w+", rule["expr"]))
    assert named
    assert not named - set(metrics)
    labels = {"job", "instance"}.union(*(metrics[name] for name in named))
    text = rule["annotations"]["summary"]
    assert not set(re.findall(r"\$labels\.(\w+)", text)) - labels
    assert not set(re.findall(r"[{,]\s*(\w+)\s*=", rule["expr"])) - labels
    assert rule["labels"]["severity"] in ("critical", "warning")


def test_outcomes_are_those_that_are_counted():
    asked = set(re.findall(r'outcome="(\w+)"', FILE.read_text()))
    families = PSCollector(lambda: pb.StatusReply()).collect()
    counted = {sample.labels.get("outcome") for family in families for sample in family.samples}
    assert asked
    assert not asked - counted


def test_the_runbook_has_each_alert_in_order():
    page = (ROOT / "docs" / "operations" / "alerts.md").read_text()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == NAMES
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool (apt-get install prometheus)")
def test_prometheus_takes_the_rules():
    found = subprocess.run(["promtool", "check", "rules", str(FILE)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
