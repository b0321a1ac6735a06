"""A pod of the plain manifests: TF_CONFIG from sizes, and the program in its place."""

import json
import os

import pytest

from globalstep.deploy import pod
from globalstep.errors import FailedPreconditionError

ENVIRON = {"GLOBALSTEP_RUN": "cats", "PS_TASKS": "2", "WORKERS": "3", "INDEX": "2"}


def test_a_worker():
    config = json.loads(pod.tf_config("worker", ENVIRON))
    assert config["task"] == {"type": "worker", "index": 2}
    assert config["cluster"]["ps"][1] == "globalstep-ps-cats-1.globalstep-ps-cats:2222"
    assert config["cluster"]["worker"][2] == "globalstep-worker-cats-2:2222"


@pytest.mark.parametrize(
    ("name", "value"), [*((name, "") for name in ENVIRON), ("PS_TASKS", "two"), ("WORKERS", "-1"), ("INDEX", "²")]
)
def test_what_is_missing_is_named(name, value):
    with pytest.raises(FailedPreconditionError, match=name):
        pod.tf_config("worker", {**ENVIRON, name: value})


def test_the_program_takes_the_place_of_this_process(monkeypatch):
    began = []
    monkeypatch.setattr(os, "execvp", lambda file, command: began.append((file, command, os.environ["TF_CONFIG"])))
    monkeypatch.setenv("TF_CONFIG", "")
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    pod.main(["chief", "python", "train.py"])
    assert began == [("python", ["python", "train.py"], pod.tf_config("chief", ENVIRON))]


def test_what_cannot_be_started(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "")
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    assert pod.main(["worker", "/there/is/none"]) == 1
    assert "/there/is/none is not started" in capsys.readouterr().err
    monkeypatch.delenv("WORKERS")
    assert pod.main(["worker", "python"]) == 1
    assert "WORKERS is ''" in capsys.readouterr().err
    assert pod.main(["ps"]) == 2
    assert "usage" in capsys.readouterr().err
