"""The Grafana dashboard against a job that runs: each query asks for what PS tasks really tell (rung 4)."""

from __future__ import annotations

import json
import re
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request

import pytest
from processes import ROOT, Processes, free_addresses, until
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.processes

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "globalstep.json").read_text())
TARGETS = [(panel, target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
#: What Prometheus says of every sample that it has taken.
SCRAPED = {"instance", "job"}
#: One launch gives ports to these, in this order.
ROLES = ("ps:0", "ps:1")
METRIC = re.compile(r"\b(?:globalstep|process)_\w+")


def ports_in_a_row(count: int) -> int:
    """Give the first of some ports that were free a moment ago."""
    while True:
        first = int(free_addresses(1)[0].rpartition(":")[2])
        try:
            for port in range(first, first + count):
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return first


def scrape(port: int) -> dict[str, set[str]]:
    """Give the names of all metrics at a port, as they are asked for, each with its labels (of those with samples)."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    found: dict[str, set[str]] = {}
    for family in families:
        found.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job with known roles; gives its metrics ports by role."""
    folder = tmp_path_factory.mktemp("dashboard")
    first = ports_in_a_row(len(ROLES))
    ports = {role: first + place for place, role in enumerate(ROLES)}
    with Processes(folder) as processes:
        running = processes.start(
            "launch", "-m", "globalstep", "launch", "--ps", 2, "--chief", "--workers", 1, "--metrics-port", first,
            ROOT / "tests" / "support" / "counting_job.py", "--last-step", 10**6, "--dir", folder / "run",
            "--pause-secs", 0.01,
        )  # fmt: skip
        processes.until("launch", r"\[worker:0\] step \d+")
        yield ports
        running.terminate()
        processes.until_ended(["launch"])


@pytest.fixture(scope="module")
def told(job):
    """What all roles tell: name -> labels."""
    found: dict[str, set[str]] = {}
    for port in job.values():
        for name, labels in scrape(port).items():
            found.setdefault(name, set()).update(labels)
    return found


@pytest.mark.parametrize(("panel", "target"), TARGETS, ids=[f"{p['id']}{t['refId']}" for p, t in TARGETS])
def test_a_query_names_only_what_is_told(told, panel, target):
    query = target["expr"]
    names = set(METRIC.findall(query))
    assert names
    assert not names - set(told), panel["title"]
    labels = {label for name in names for label in told[name]}
    asked = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query)) - {"__name__"}
    grouped = [set(re.split(r"[,\s]+", inside.strip())) for inside in re.findall(r"\bby\s*\(([^)]*)\)", query)]
    for inside in (*grouped, asked):
        assert not inside - labels - SCRAPED, panel["title"]
    # A legend shows labels that are left after grouping.
    left = set.intersection(*grouped) if grouped else labels | SCRAPED
    assert not set(re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"])) - left, panel["title"]


def test_the_file_is_one_that_grafana_imports():
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"] == "globalstep"
    assert "id" not in DASHBOARD or DASHBOARD["id"] is None
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 14
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] == "timeseries"
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) >= 1


def answer(address: str, path: str, **query: str):
    """Give what Prometheus answers; None if it does not yet."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}?{urllib.parse.urlencode(query)}", timeout=10) as page:
            return json.loads(page.read())["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    except OSError:
        return None


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus (apt-get install prometheus)")
def test_a_prometheus_has_an_answer_to_each_query(job, tmp_path):
    targets = [f"127.0.0.1:{port}" for port in job.values()]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "training", "static_configs": [{"targets": targets}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    (address,) = free_addresses(1)
    with Processes(tmp_path) as processes:
        # Not a program of Python's: one that becomes it.
        processes.start(
            "prometheus",
            "-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])",
            "prometheus", "--config.file", tmp_path / "prometheus.yml", "--storage.tsdb.path", tmp_path / "data",
            "--web.listen-address", address,
        )  # fmt: skip

        def results(query: str):
            query = query.replace("$__rate_interval", "1m")
            return (answer(address, "/api/v1/query", query=query) or {"result": []})["result"]

        until(lambda: len(results('up{job="training"} == 1')) == len(targets), "all targets are up")
        for panel, target in TARGETS:
            until(lambda query=target["expr"]: results(query), f"{panel['title']}: {target['expr']}")
        (step,) = results("globalstep_step")
        assert float(step["value"][1]) > 0
