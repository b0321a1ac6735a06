"""What becomes of measurements: verdicts on bars, tables, plots, and the page of the documentation."""

import pytest

from benchmarks.harness.laps import STAGES
from benchmarks.harness.workload import Case
from benchmarks.reports import bars, report


def turns(case, key, rates, **more):
    return [
        {
            "case": case.as_dict(), "peer": key, "round": number, "rate": rate, "step_us": 1e6 / rate,
            "worker_cpu_us": 10.0, "ps_cpu_us": 20.0, "apply_us": 5.0 if key == "auto" else 0.0,
            "stages_us": dict.fromkeys(STAGES, 30.0) if key == "auto" else {}, **more,
        }
        for number, rate in enumerate(rates)
    ]  # fmt: skip


def verdict(records, what, beside):
    (found,) = [v for v in bars.verdicts(records) if v.what == what and v.against.startswith(beside)]
    return found


class TestVerdicts:
    CASE = Case("dense", 1_000_000)
    WHAT = "1 M, SGD, 2 workers"

    def test_a_ratio_is_the_median_of_the_rounds_ratios(self):
        # The medians alone would give 200 / 100 = 2.
        records = turns(self.CASE, "auto", [100, 200, 900]) + turns(self.CASE, "tensorflow", [10, 400, 100])
        found = verdict(records, self.WHAT, "TF1")
        assert (found.ratio, found.bar, found.reached) == (9.0, 3.0, True)
        assert (found.mine, found.against) == ("200/s", "TF1 100/s")

    def test_the_faster_of_torchs_transports_counts(self):
        records = turns(self.CASE, "auto", [120.0] * 3)
        records += turns(self.CASE, "torch-shm", [60.0] * 3) + turns(self.CASE, "torch-tcp", [100.0] * 3)
        found = verdict(records, self.WHAT, "torch rpc (tcp)")
        assert (found.ratio, found.bar, found.reached) == (1.2, 1.5, False)

    def test_whether_a_bar_beside_an_absent_peer_is_reached_is_not_known(self):
        found = verdict(turns(self.CASE, "auto", [120.0]), self.WHAT, "TF1")
        assert (found.against, found.ratio, found.reached) == ("TF1: absent", None, None)

    def test_digits_compare_times_the_other_way_round(self):
        records = [
            {"job": "digits", "peer": key, "round": 0, "secs": secs, "total_secs": secs + 3, "reached": True}
            for key, secs in (("session", 2.0), ("tensorflow", 3.0))
        ]
        found = verdict(records, "digits job, time to 97%", "TF1")
        assert (found.mine, found.against, found.ratio) == ("2.00 s", "TF1 3.00 s", 1.5)
        assert verdict(records, "... with the start of all processes", "TF1").ratio == pytest.approx(1.2)

    def test_digits_that_were_never_learned_reach_no_bar(self):
        records = [
            {"job": "digits", "peer": key, "round": 0, "secs": 60.0, "reached": key != "session"}
            for key in ("session", "tensorflow")
        ]
        found = verdict(records, "digits job, time to 97%", "TF1")
        assert (found.mine, found.reached) == ("not reached", False)

    def test_memory_is_to_be_no_more_than_its_limit(self):
        record = {"what": "2 workers push", "ps": 2, "held_bytes": 300e6, "limit_bytes": 800e6, "peak_bytes": 880e6}
        found = verdict([record], "memory of the PS, 2 workers push", "values + slots 300 MB")
        assert (found.ratio, found.reached) == (1.1, False)


def test_results_are_put_into_their_place_of_the_page(tmp_path):
    page, results = tmp_path / "benchmarks" / "figures.md", tmp_path / "results"
    for folder in (page.parent, tmp_path / "docs" / "img", results):
        folder.mkdir(parents=True)
    page.write_text("before\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nafter\n")
    (results / "bench.md").write_text("new\n")
    (results / "bench-sizes.png").write_bytes(b"picture")
    report.publish(results, "bench", tmp_path)
    expected = "before\n<!-- bench: begin -->\n\nnew\n\n<!-- bench: end -->\nafter\n"
    assert page.read_text() == expected
    assert (tmp_path / "docs" / "img" / "bench-sizes.png").read_bytes() == b"picture"
    with pytest.raises(ValueError, match="once each"):
        report.publish(results, "other", tmp_path)
