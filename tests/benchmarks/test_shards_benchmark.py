"""The benchmark of several PS tasks: a short run of all its parts, behind a proxy that delays."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks import durability
from benchmarks.harness.delayed_links import FAR, delayed, free_ports, round_trip_secs
from benchmarks.harness.processes import children
from benchmarks.modes import placement, shards

pytestmark = pytest.mark.processes


def test_a_delayed_link_takes_its_time_each_way():
    with children() as started, shards._Echo() as port:
        proxy = delayed(started, [port], 0.02)
        assert min(round_trip_secs(FAR, port, count=5)) >= 0.04
        proxy.end()


def test_a_short_run_measures_all_parts(tmp_path):
    few = ["--rounds", "1", "--secs", "0.1", "--workers", "1", "2", "--ps", "2", "--shared-ps", "1"]
    assert shards.main([*few, "--far-ps", "2", "--delay-ms", "2", "--out", str(tmp_path)]) == 0
    description, *records = [json.loads(line) for line in (tmp_path / "shards.jsonl").read_text().splitlines()]
    assert description["machine"]["params"] == 1000
    assert sorted((record["part"], record["ps"], record["workers"]) for record in records) == [
        *[("delay", 2, 1), ("tasks", 2, 1), ("workers", 1, 1), ("workers", 1, 2)],
    ]
    (far,) = (record for record in records if record["part"] == "delay")
    # One message goes there, and from there to the other task, whose answer comes back.
    assert far["median_secs"] >= 3 * 0.002
    assert "| 1 | 2 | **" in (tmp_path / "shards.md").read_text()


def test_placements_are_measured_beside_each_other(tmp_path):
    few = ["--rounds", "2", "--secs", "0.1", "--workers", "1", "--sizes", "1000", "--rules", "sgd"]
    assert placement.main([*few, "--out", str(tmp_path)]) == 0
    _, *records = [json.loads(line) for line in (tmp_path / "placement.jsonl").read_text().splitlines()]
    turns = [(record["round"], record["cluster"]) for record in records if "rate" in record]
    assert turns == [(number, cluster) for number in (0, 1) for cluster in ("one", "two", "spread")]
    assert "| sgd | 1 k | 1 | " in (tmp_path / "placement.md").read_text()


def test_the_price_of_a_log_is_measured_over_several_tasks(tmp_path):
    few = ["--rounds", "1", "--secs", "0.1", "--workers", "1", "--params", "1000", "--dir", str(tmp_path)]
    assert durability.main([*few, "--ps", "2", "--out", str(tmp_path)]) == 0
    assert "| 1,000 | 1 | 2 | " in (tmp_path / "durability.md").read_text()
    assert not [name for name in os.listdir(tmp_path) if name.startswith("globalstep-log-")]


def test_ports_are_free_at_both_addresses():
    assert len(set(free_ports(4))) == 4
