"""The benchmark between two network namespaces: its arithmetic, and a short run that ends cleanly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.throttled import why_not
from benchmarks.namespaces import connections_at, ratios

ROOT = Path(__file__).resolve().parents[2]

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 01004E0A:08FC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 01004E0A:08FC 02004E0A:C0DE 01 00000000:00000000 00:00000000 00000000     0        0 2
   2: 01004E0A:08AE 02004E0A:C0DF 01 00000000:00000000 00:00000000 00000000     0        0 3
"""


def test_connections_of_a_port_are_those_that_stand():
    assert [connections_at(TABLE, port) for port in (2300, 2222, 2301)] == [1, 1, 0]


def test_a_ratio_is_of_one_round():
    rates = {"auto": (6.0, 9.0), "grpc": (3.0, 3.0)}
    records = [
        {"peer": peer, "round": number, "rate": rate}
        for peer, found in rates.items()
        for number, rate in enumerate(found)
    ]
    assert ratios(records) == [2.0, 3.0]


@pytest.mark.full_matrix
@pytest.mark.processes
@pytest.mark.skipif(bool(why_not(None)), reason=f"no hosts: {why_not(None)}")
def test_a_short_run_compares_both_and_has_taken_the_socket(tmp_path):
    command = [sys.executable, "-m", "benchmarks.namespaces", "--rounds", "1", "--secs", "0.05", "--sizes", "1000"]
    out = tmp_path / "records"
    done = subprocess.run(
        [*command, "--ps", "2", "--rules", "sgd", "--out", out],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    (row,) = done.stdout.splitlines()[1:]
    assert "1 k, SGD, 1 worker, 2 PS" in row
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert {record["peer"] for record in records if "peer" in record} == {"auto", "grpc"}
