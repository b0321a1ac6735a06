"""What the comparison of plans with real runs makes of its measurements."""

from __future__ import annotations

import pytest

from benchmarks.harness.processes import ROOT
from benchmarks.planning import EXAMPLES, cases
from benchmarks.reports import planning_report
from benchmarks.reports.report import publish

WHERE = {
    "date": "2026-01-01", "cpu": "a cpu", "cores": 2, "load_before": 0.1, "load_after": 0.2, "python": "3.11",
    "grpcio": "1.85", "rounds": 2, "secs": 0.5, "absent": "",
}  # fmt: skip


def record(number, measured, predicted, workers=1, megabits=0):
    case = {
        "transport": "tcp", "size": 1000, "optimizer": "sgd", "workers": workers, "ps": 1, "step_secs": 0.01,
        "megabits": megabits,
    }  # fmt: skip
    return {
        "round": number, "case": case, "free_cores": 1.5, "measured": measured, "predicted": predicted,
        "measured_staleness": 0.0, "predicted_staleness": 0.5,
    }  # fmt: skip


RECORDS = [
    record(0, 100.0, 110.0), record(1, 200.0, 240.0), record(0, 10.0, 5.0, workers=2),
    record(0, 10.0, 9.0, megabits=100),
]  # fmt: skip


def test_ratios_are_taken_within_a_round():
    text = planning_report.table(RECORDS, WHERE)
    assert "2 of 3 within a factor of 1.25" in text
    assert "| tcp | sgd | 1,000 | 1 | 1 | 10 |  | 1.5 | 150 | 175 | 1.15 | 0.0 | 0.5 |" in text
    assert "the worst by 2.00" in text
    assert "No throttled links: not root." in planning_report.table(RECORDS, {**WHERE, "absent": "not root"})


def test_the_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    planning_report.plot(RECORDS, tmp_path / "planning.png")
    assert (tmp_path / "planning.png").read_bytes().startswith(b"\x89PNG")


def test_results_go_into_their_own_page(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    (docs / "img").mkdir(parents=True)
    results.mkdir()
    (results / "planning.md").write_text("new\n")
    (docs / "plan.md").write_text("a\n<!-- planning: begin -->\nold\n<!-- planning: end -->\nb\n")
    publish(results, "planning", docs, "plan.md")
    assert (docs / "plan.md").read_text() == "a\n<!-- planning: begin -->\n\nnew\n\n<!-- planning: end -->\nb\n"


def test_the_cases_are_those_that_were_asked_for():
    full, quick = cases(False, 0), cases(True, 0)
    assert {case.workers for case in full} == {1, 2, 3, 4}
    assert {case.ps for case in full} == {1, 2}
    assert set(quick) < set(full)
    assert {case.megabits for case in cases(False, 200)} == {200}


def test_the_page_shows_the_commands_whose_output_it_shows():
    page = (ROOT / "docs" / "plan.md").read_text()
    for name, command in EXAMPLES.items():
        assert f"globalstep {command}\n" in page
        assert f"<!-- {name}: begin -->\n" in page
