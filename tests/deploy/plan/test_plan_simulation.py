"""The simulation of `globalstep plan`: clusters whose answer is known, and what no cluster can exceed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_costs import profile

from globalstep.deploy.plan.cluster import Leg, Phase, SimulatedCluster
from globalstep.deploy.plan.job import PAYLOAD, Job, bounds, cluster_of, memory_of, phases_of
from globalstep.deploy.plan.resources import SimulatedCores
from globalstep.deploy.plan.simulation import simulate
from globalstep.deploy.plan.sizing import forecast, make_plan
from globalstep.errors import InvalidArgumentError

MEGABYTE = 1e6


def run(cluster, *phases, seed=1, steps=30):
    return simulate(cluster, list(phases), random.Random(seed), steps)


def push(**costs):
    return Phase((Leg(0, **costs),), admits=True, sees=True)


def gbps(bytes_sec):
    """Of a link that passes so many bytes of messages."""
    return bytes_sec * 8 / 1e9 / PAYLOAD


def test_one_workers_step_is_the_sum_of_its_parts():
    parts = {
        "send_secs": 0.001, "receive_secs": 0.002, "handle_secs": 0.003, "take_secs": 0.004, "apply_secs": 0.005,
        "give_secs": 0.006, "delay_secs": 0.007,
    }  # fmt: skip
    found = run(SimulatedCluster(1, 1, compute_secs=0.1, round_trip_secs=0.01), push(**parts))
    assert found.step_secs == pytest.approx(0.1 + 0.01 + sum(parts.values()))
    assert found.steps_sec == pytest.approx(1 / found.step_secs)
    assert found.busy["workers' computing"] == pytest.approx(0.1 / found.step_secs, rel=0.05)
    assert found.staleness == {0: 30}


def test_a_transfer_takes_as_long_as_the_slower_link():
    slow_worker = SimulatedCluster(1, 1, compute_secs=0.0, worker_bytes_sec=1e6, ps_bytes_sec=1e9)
    assert run(slow_worker, push(out_bytes=MEGABYTE)).step_secs == pytest.approx(1.0)
    slow_ps = SimulatedCluster(1, 1, compute_secs=0.0, worker_bytes_sec=1e9, ps_bytes_sec=1e6)
    assert run(slow_ps, push(in_bytes=2 * MEGABYTE)).step_secs == pytest.approx(2.0)


def test_receiving_goes_on_while_the_rest_of_a_large_message_is_on_its_way():
    link = SimulatedCluster(1, 1, compute_secs=0.0, worker_bytes_sec=1e9, ps_bytes_sec=1e9)
    found = run(link, push(out_bytes=1e9, take_secs=0.5))
    assert 1.0 < found.step_secs < 1.01


def test_both_sides_may_work_on_a_message_at_the_same_time():
    found = run(SimulatedCluster(1, 1, compute_secs=0.0), push(send_secs=0.01, take_secs=0.01, delay_secs=-0.008))
    assert found.step_secs == pytest.approx(0.016)


@pytest.mark.parametrize("part", ["handle_secs", "apply_secs"])
def test_a_saturated_resource_sets_the_throughput(part):
    found = run(SimulatedCluster(20, 1, compute_secs=0.01, ps_cores=4), push(**{part: 0.01}))
    assert found.steps_sec == pytest.approx(100.0)
    assert found.step_secs == pytest.approx(0.2, rel=0.01)


def test_cores_work_side_by_side_and_a_lock_does_not():
    assert run(SimulatedCluster(20, 1, compute_secs=0.0, ps_cores=4), push(take_secs=0.01)).steps_sec == pytest.approx(
        400.0, rel=0.02
    )
    assert run(SimulatedCluster(20, 1, compute_secs=0.0, ps_cores=4), push(apply_secs=0.01)).steps_sec == pytest.approx(
        100.0, rel=0.02
    )


def test_a_part_of_a_core_is_that_much_slower():
    assert SimulatedCores(0.5).work(1.0, 1.0) == 3.0
    shared = SimulatedCluster(6, 1, compute_secs=0.0, shared_cores=1.5)
    assert run(shared, push(send_secs=0.005, take_secs=0.005), steps=100).steps_sec == pytest.approx(150.0, rel=0.03)
    alone = replace(shared, workers=1)
    assert run(alone, push(send_secs=0.005, take_secs=0.005)).steps_sec == pytest.approx(100.0)


def test_computing_on_shared_cores_takes_turns_with_the_rest():
    cluster = SimulatedCluster(4, 1, compute_secs=0.02, shared_cores=2)
    assert run(cluster, push(take_secs=0.02)).steps_sec == pytest.approx(50.0, rel=0.02)
    away = replace(cluster, compute_takes_core=False)
    assert run(away, push(take_secs=0.02)).steps_sec == pytest.approx(100.0, rel=0.02)


@pytest.mark.parametrize("workers", [2, 5, 20])
def test_equal_workers_are_stale_by_each_other(workers):
    found = run(SimulatedCluster(workers, 1, compute_secs=1.0), push(apply_secs=0.001))
    mean = sum(lag * pushes for lag, pushes in found.staleness.items()) / sum(found.staleness.values())
    assert mean == pytest.approx(workers - 1, abs=0.1)


def test_the_same_seed_gives_the_same_and_another_one_does_not():
    cluster = SimulatedCluster(7, 1, compute_secs=0.1, spread=0.3)
    first, second, other = (run(cluster, push(apply_secs=0.01), seed=seed) for seed in (3, 3, 4))
    assert first == second
    assert first.steps_sec != other.steps_sec


def test_what_a_ps_holds_at_most_is_all_pushes_at_once():
    found = run(SimulatedCluster(10, 1, compute_secs=0.0), push(out_bytes=100.0, apply_secs=0.01, held_bytes=100.0))
    assert 900.0 <= found.held_bytes <= 1000.0


# ---- Jobs ---------------------------------------------------------------------------------------


def plain(**changes):
    return Job(**{"params": 1e6, "workers": 1, "step_secs": 0.1, "optimizer": "sgd", "ps_cores": 8} | changes)


def test_a_job_on_one_ps_is_one_message_each_way():
    # 100 us and 4 MB twice on each side, and a kernel of 1 ns a parameter.
    found = forecast(plain(), profile(), 1, random.Random(1))
    assert found.step_secs == pytest.approx(0.1 + 2 * (100e-6 + 2 * 4e-3) + 1e-3)
    assert found.bytes_sec == pytest.approx(found.steps_sec * 8e6)


def test_a_job_on_two_ps_stages_admits_and_commits():
    phases = phases_of(plain(), profile(), 2)
    assert [len(phase.legs) for phase in phases] == [2, 1, 1, 1]
    assert [phase.admits for phase in phases] == [False, True, False, False]
    assert not phases[3].waits
    assert sum(leg.out_bytes for phase in phases for leg in phase.legs) == 4e6
    assert sum(leg.in_bytes for phase in phases for leg in phase.legs) == 4e6
    small = phases_of(plain(params=1e4), profile(), 2)
    assert [len(phase.legs) for phase in small] == [1, 1, 1, 1]  # the sequencer's part comes with ADMIT


def test_a_small_push_goes_through_the_sequencer():
    job = plain(params=4096, round_trip_secs=1e-3)
    (phase,) = phases_of(job, profile(), 2)
    assert (phase.admits, phase.sees, phase.waits) == (True, True, True)
    commit, admit = phase.legs
    assert (admit.shard, admit.out_bytes, admit.in_bytes) == (0, 16_384, 8_192)
    assert (commit.shard, commit.out_bytes, commit.in_bytes) == (1, 0, 8_192)
    # What the other task waits for: the sequencer's 150 us, and half a round trip between the tasks.
    assert commit.delay_secs - admit.delay_secs == pytest.approx(150e-6 + 0.5e-3)
    found = forecast(replace(job, step_spread=0.0), profile(), 2, random.Random(1))
    staged = forecast(replace(job, params=8194, step_spread=0.0), profile(), 2, random.Random(1))
    # One and a half round trips instead of three, and what COMPLETE costs is part of both.
    assert staged.step_secs - found.step_secs > 1e-3
    # What others' parts have together counts, and one that is packed, or of rows, is staged.
    assert len(phases_of(plain(params=16_384 / 3), profile(), 4)) == 1
    for larger in (
        plain(params=16_384 / 3 + 4),
        plain(params=4096, wire_itemsize=2),
        plain(params=4096, value_itemsize=2),
        plain(params=4096, rows=4, row_width=64),
    ):
        assert len(phases_of(larger, profile(), 4)) >= 4
    many = phases_of(plain(params=4000), profile(), 100)[0]
    assert sum(leg.stands_for for leg in many.legs) == 100


def test_many_ps_are_simulated_by_a_few_and_all_are_paid_for():
    few, many = (phases_of(plain(params=1e9), profile(), ps) for ps in (8, 100))
    assert len(few[0].legs) == 8
    assert len(many[0].legs) == 5
    for phases, ps in ((few, 8), (many, 100)):
        assert sum(leg.stands_for for leg in phases[0].legs) == ps
        total = sum(leg.out_bytes * leg.stands_for for phase in phases for leg in phase.legs)
        assert total == pytest.approx(4e9)


def test_twice_as_many_ps_halve_the_transfer_where_their_links_are_the_limit():
    costs = profile(worker=1e-6, ps=1e-6, byte=1e-12)
    # No machine's own processor counts for anything here.
    job = plain(params=1e7, workers=32, step_secs=1e-3, nic_gbps=gbps(1e9), ps_cores=8, optimizer="sgd")
    rates = [forecast(job, costs, ps, random.Random(1)).steps_sec for ps in (1, 2, 4)]
    assert rates[0] == pytest.approx(25.0, rel=0.02)  # 40 MB into one link of 1 GB/s
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.05)
    assert rates[2] == pytest.approx(4 * rates[0], rel=0.1)
    found = forecast(job, costs, 1, random.Random(1))
    assert found.bottleneck.startswith("sequencer: link")


def test_bfloat16_halves_the_bytes_and_packing_costs():
    job = plain(nic_gbps=gbps(1e9))
    full, half = (phases_of(job, profile(), 1)[0].legs[0] for job in (job, replace(job, wire_itemsize=2)))
    assert half.out_bytes == full.out_bytes / 2
    assert half.send_secs == pytest.approx(50e-6 + 2e-3 + 1e6 * 0.5e-9)


def test_int8_takes_a_quarter_of_the_gradients_and_half_of_the_values():
    job = plain(wire_itemsize=33 / 32, value_itemsize=2)
    (phase,) = phases_of(job, profile(), 1)
    assert (phase.legs[0].out_bytes, phase.legs[0].in_bytes) == (1_031_250, 2e6)
    assert job.step_bytes == 3_031_250
    assert memory_of(job, profile(), 1, held_bytes=0.0).under_way == 2e6
    plain_wire, packed = (forecast(plain(nic_gbps=gbps(1e8), **wire), profile(), 1, random.Random(1)).step_secs
                          for wire in ({}, {"wire_itemsize": 33 / 32, "value_itemsize": 2}))  # fmt: skip
    # Links of 100 MB/s are most of it: 8 MB, and 3.
    assert plain_wire - packed > 0.03


def test_rows_are_read_before_they_are_pushed():
    job = plain(params=64e6, rows=1000, row_width=64, optimizer="adagrad")
    pull, pushed = phases_of(job, profile(), 1)
    assert pull.sees
    assert not pull.admits
    assert (pull.legs[0].out_bytes, pull.legs[0].in_bytes) == (4000, 64_000 * 4)
    assert (pushed.legs[0].out_bytes, pushed.legs[0].in_bytes) == (64_000 * 4 + 4000, 0)
    assert pushed.admits
    assert pushed.legs[0].apply_secs == pytest.approx(64_000 * 3e-9)
    assert len(phases_of(job, profile(), 2)) == 8
    # TensorFlow's Adam changes the whole table, whatever rows are pushed.
    assert phases_of(replace(job, optimizer="adam"), profile(), 1)[1].legs[0].apply_secs == pytest.approx(64e6 * 1e-9)


def test_large_pushes_are_applied_by_several_threads():
    one, four = (phases_of(plain(params=1e8, ps_cores=count), profile(), 1)[0].legs[0].apply_secs for count in (2, 8))
    assert one == pytest.approx(0.1)
    # 4 threads, of memory that 16 bytes a parameter go through at 40 GB/s.
    assert four == pytest.approx(0.04)


def test_crowded_ps_cost_what_was_measured_with_several_workers():
    def cost(workers, shared):
        job = plain(params=1000, workers=workers, shared_cores=shared)
        return phases_of(job, profile(crowded=2.0), 1)[0].legs[0]

    assert cost(1, 0).handle_secs == pytest.approx(100e-6)
    assert cost(4, 0).handle_secs == cost(9, 0).handle_secs == pytest.approx(200e-6)
    assert cost(4, 0).send_secs < cost(4, 2.0).send_secs


def test_memory_is_values_slots_and_what_is_under_way():
    memory = memory_of(plain(params=1e9, optimizer="adam"), profile(), 10, held_bytes=5e8)
    assert memory.values == 1.2e9
    assert memory.under_way == 5e8 + 4e8
    assert memory.total == memory.values + memory.under_way + memory.process


@pytest.mark.parametrize(
    "wrong",
    [{"params": 0}, {"workers": 0}, {"step_secs": -1.0}, {"nic_gbps": 0.0}, {"optimizer": "sgdd"}, {"rows": 3}],
)
def test_a_job_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidArgumentError):
        plain(**wrong)


def test_a_transport_that_was_not_measured_is_refused():
    with pytest.raises(InvalidArgumentError, match="has no 'unix'"):
        phases_of(plain(transport="unix"), profile(), 1)


# ---- How many PS --------------------------------------------------------------------------------


def test_a_job_that_one_ps_serves_needs_one():
    plan = make_plan(plain(params=1e4, workers=4, step_secs=1.0), profile(), 0, seed=1)
    assert plan.chosen.ps == 1
    assert "compute" in plan.why
    assert plan.chosen.efficiency > 0.95


@pytest.mark.long
def test_ps_are_added_until_workers_are_bound_by_their_own_computing():
    job = plain(params=1e6, workers=400, step_secs=0.5, nic_gbps=gbps(1e9))
    plan = make_plan(job, profile(), 0, seed=1)
    assert plan.chosen.ps > 1
    assert plan.chosen.efficiency > 0.94
    fewer = forecast(job, profile(), plan.chosen.ps // 2, random.Random(1))
    assert fewer.efficiency < 0.95


def test_no_more_ps_are_advised_than_help():
    # Each worker's own link is the limit: 40 MB each way and its processor.
    job = plain(params=1e7, workers=8, step_secs=0.01, nic_gbps=gbps(0.2e9))
    plan = make_plan(job, profile(), 0, seed=1)
    twice = forecast(job, profile(), 2 * plan.chosen.ps, random.Random(1))
    assert twice.steps_sec < 1.1 * plan.chosen.steps_sec
    assert "5%" in plan.why


def test_a_number_that_was_asked_for_is_simulated():
    plan = make_plan(plain(workers=4), profile(), 3, seed=1)
    assert plan.asked
    assert plan.chosen.ps == 3
    assert [tried.ps for tried in plan.tried] == [1, 3, 6]


# ---- What cannot be -----------------------------------------------------------------------------

SECS = st.floats(1e-5, 5e-3)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(
    params=st.floats(1e3, 1e8), workers=st.integers(1, 40), ps=st.integers(1, 20), compute=st.floats(0.0, 0.2),
    spread=st.floats(0.0, 0.3), nic=st.floats(0.5, 100.0), cores=st.integers(1, 16), shared=st.sampled_from([0.0, 1.5]),
    optimizer=st.sampled_from(["sgd", "adam"]), seed=st.integers(0, 5),
)  # fmt: skip
def test_throughput_never_exceeds_what_a_resource_allows(
    params, workers, ps, compute, spread, nic, cores, shared, optimizer, seed
):
    job = plain(
        params=params, workers=workers, step_secs=compute, step_spread=spread, nic_gbps=nic, ps_cores=cores,
        shared_cores=shared, optimizer=optimizer,
    )  # fmt: skip
    cluster, phases = cluster_of(job, ps), phases_of(job, profile(), ps)
    steps = max(10, 300 / workers)
    found = simulate(cluster, phases, random.Random(seed), steps)
    counted = sum(found.staleness.values())
    # Steps that end in a stretch of time may have begun before it: of each worker one, more or less. What a spread
    # leaves of computing is a matter of chance.
    slack = 1 + (workers + 2) / counted + 4 * spread / counted**0.5
    for name, bound in bounds(cluster, phases).items():
        assert found.steps_sec <= bound * slack, name
    assert all(0.0 <= part <= 1.0 for part in found.busy.values())
