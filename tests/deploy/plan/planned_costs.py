"""A profile with round numbers: a message costs 100 us on each side, a byte 1 ns on each side and way."""

from __future__ import annotations

from globalstep.deploy.bench.cost_profile import KernelCosts, Profile, StepCost, TransportCosts


def wire(worker=100e-6, ps=100e-6, byte=1e-9, delay=0.0, crowded=1.0):
    def curve(factor):
        return tuple(
            StepCost(nbytes, factor * (worker + 2 * nbytes * byte), factor * (ps + 2 * nbytes * byte), delay)
            for nbytes in (0.0, 1e6, 1e7)
        )

    return TransportCosts(
        alone=curve(1.0),
        crowded=curve(crowded),
        crowd=4,
        admit_worker_secs=1.5 * worker,
        admit_ps_secs=1.5 * ps,
        part_worker_secs=2 * worker,
        part_ps_secs=2 * ps,
    )


def kernel(slots, secs, table=0.0):
    return KernelCosts(slots, ((1e3, 1e3 * secs), (1e6, 1e6 * secs)), 2 * secs if not table else 0.0, table)


def profile(**costs):
    return Profile(
        machine={"cpu": "a test's", "date": "2026-01-01", "load": 0.0},
        cores=8,
        copy_bytes_sec=10e9,
        all_cores_copy_bytes_sec=40e9,
        transports={"grpc": wire(**costs), "tcp": wire(**costs), "shm": wire(byte=0.0)},
        kernels={
            "gradient_descent": kernel(0, 1e-9),
            "momentum": kernel(1, 1.5e-9),
            "adagrad": kernel(1, 1.5e-9),
            "adam": kernel(2, 2e-9, table=1e-9),
            "lazy_adam": kernel(2, 2e-9),
        },
        gather_element_secs=1e-9,
        pack_element_secs=0.5e-9,
    )
