"""A port for metrics without prometheus-client: said before a job starts, and no reason for a task to end."""

import sys

import pytest

from globalstep.deploy import cli
from globalstep.ps.server import PSOptions, PSServer

HINT = "pip install 'globalstep[metrics]'"


@pytest.fixture
def _without_prometheus(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "globalstep.ps.service.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)


@pytest.mark.usefixtures("_without_prometheus")
def test_launch_refuses_the_option_before_anything_starts(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it was started')")
    assert cli.main(["launch", "--metrics-port", "9100", str(script)]) == 2
    said = capsys.readouterr()
    assert HINT in said.err
    assert said.out == ""


@pytest.mark.usefixtures("_without_prometheus")
def test_a_ps_task_goes_on_without_and_says_so(caplog):
    server = PSServer(PSOptions(metrics_port="0"))
    server.start()
    server.close()
    assert HINT in caplog.text
