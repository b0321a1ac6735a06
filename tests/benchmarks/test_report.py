"""What becomes of measurements: verdicts on bars, tables, plots, and the page of the documentation."""

import pytest

from benchmarks.harness.laps import STAGES
from benchmarks.harness.workload import Case
from benchmarks.reports import bars, plots, report

MACHINE = {
    "date": "2026-11-20", "cpu": "a processor", "cores": 2, "load_before": 0.1, "load_after": 1.9, "python": "3.11.7",
    "grpcio": "1.85.1", "protobuf": "7.36.2", "numpy": "2.4.6", "numba": "0.68.1", "rounds": 3, "secs_per_turn": 0.1,
    "absent": {"ray": "ray not installed"}, "peer_versions": {"torch": "2.13.0"},
}  # fmt: skip


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

    def test_tcp_is_compared_with_torch_over_tcp_whatever_is_faster(self):
        records = turns(self.CASE, "tcp", [120.0] * 3)
        records += turns(self.CASE, "torch-shm", [500.0] * 3) + turns(self.CASE, "torch-tcp", [60.0] * 3)
        found = verdict(records, f"{self.WHAT}, transport=tcp", "torch rpc")
        assert (found.ratio, found.bar, found.reached) == (2.0, 1.3, True)

    def test_whether_a_bar_beside_an_absent_peer_is_reached_is_not_known(self):
        found = verdict(turns(self.CASE, "auto", [120.0]), self.WHAT, "TF1")
        assert (found.against, found.ratio, found.reached) == ("TF1: absent", None, None)

    @pytest.mark.parametrize(
        ("size", "over_tf", "over_torch", "grpc", "tcp"),
        [
            (1_000, 3.0, 2.5, 2.5, 3.0),
            (100_000, 3.0, 2.0, 2.5, 3.0),
            (1_000_000, 3.0, 1.5, 0.9, 1.3),
            (10_000_000, 2.5, 1.5, 0.9, 1.3),
            (25_000_000, 2.5, 1.5, 0.9, 1.3),
        ],
    )
    def test_each_size_has_the_bars_of_the_issue(self, size, over_tf, over_torch, grpc, tcp):
        case = Case("dense", size, workers=1 if size == 1_000 else 2)
        records = [record for key in ("auto", "grpc", "tcp") for record in turns(case, key, [1.0])]
        assert [found.bar for found in bars.verdicts(records)] == [over_tf, over_torch, grpc, tcp]

    def test_embeddings_are_told_in_rows(self):
        case = Case("embedding", 1_000_000, rule="adagrad")
        found = verdict(turns(case, "auto", [1000.0]), "embedding, Adagrad, 2 workers", "TF1")
        assert found.mine == "8.19 M rows/s"

    def test_many_variables_are_compared_with_one(self):
        many, one = bars.MANY
        records = turns(many, "auto", [80.0]) + turns(one, "auto", [100.0])
        found = verdict(records, "200 Variables of 5 k, SGD, 2 workers", "one Variable")
        assert (found.ratio, found.bar, found.reached) == (0.8, 0.85, False)

    def test_both_numbers_of_ps_stand_together(self):
        records = [
            record
            for size in (100_000, 1_000_000)
            for ps in (1, 2)
            for record in turns(Case("dense", size, ps=ps), "auto", [1.0])
        ]
        found = [(v.what, v.ps) for v in bars.verdicts(records)]
        assert found == [(what, ps) for what in ("0.1 M, SGD, 2 workers", self.WHAT) for ps in (1, 1, 2, 2)]

    def test_the_kernel_without_gcc_has_nothing_to_be_compared_with(self):
        found = verdict([{"round": 0, "elements": 25_000_000, "ps_gb_per_sec": 20.0}], KERNEL, "C: no gcc")
        assert found.reached is None

    def test_the_kernel_beside_c(self):
        rounds = [{"round": 0, "elements": 25_000_000, "ps_gb_per_sec": 18.0, "c_gb_per_sec": 20.0}]
        assert verdict(rounds, KERNEL, "C 20.0 GB/s").ratio == 0.9

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


KERNEL = "fused Adam on 25 M floats in the PS"


def test_the_tables_have_bars_rates_and_what_was_lost():
    case = Case("dense", 1000, workers=1)
    records = [
        *turns(case, "auto", [3000.0, 3100.0, 2900.0]),
        *turns(case, "tensorflow", [400.0, 500.0, 450.0]),
        {"case": case.as_dict(), "program": "globalstep", "steps": 9000, "lost_steps": 0},
        {"case": case.as_dict(), "program": "tensorflow", "steps": 1350, "lost_steps": 7},
        {"job": "digits", "peer": "session", "round": 0, "secs": 2.0, "steps": 500, "reached": True},
        {"round": 0, "elements": 25_000_000, "ps_gb_per_sec": 20.0},
    ]
    text = report.tables(records, MACHINE)
    assert "ray: ray not installed." in text
    assert "| 1 k, SGD, 1 worker | 1 | 3,000/s | TF1 450/s | 6.44 | 3 | yes |\n" in text
    assert "| workload | PS | globalstep | TensorFlow 1 PS |\n" in text
    assert "| 1 k, SGD, 1 worker | 1 | 3,000 | 450 |\n" in text
    assert "globalstep 0 of 9,000, tensorflow 7 of 1,350.\n" in text


def test_the_profile_tells_both_sides():
    records = turns(Case("dense", 1000, workers=1), "auto", [2000.0], profile=True)
    assert "| 1 k, SGD, 1 worker | 1 | globalstep | 500 | 30 | 30 | 30 | 30 | 30 | 5.0 | 10.0 | 20 |\n" in (
        report.profile_table(records, MACHINE)
    )
    assert report.profile_table(turns(Case("dense", 1000), "auto", [1.0]), MACHINE) == ""


def test_plots_are_drawn_of_what_was_measured(tmp_path):
    records = [
        *[r for s in (100_000, 1_000_000) for r in turns(Case("dense", s), "auto", [5e8 / s])],
        *turns(Case("dense", 1_000_000, workers=1), "auto", [300.0]),
        *turns(Case("dense", 1_000_000, workers=1), "auto", [300.0], profile=True),
    ]
    made = plots.draw(records, tmp_path, "bench")
    assert [path.name for path in made] == ["bench-sizes.png", "bench-scaling.png", "bench-stages.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)
    assert plots.draw([], tmp_path, "none") == []


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
