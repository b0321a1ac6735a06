"""A job goes on, and ends exactly, while its PS task's ports are scanned and sent garbage."""

from __future__ import annotations

import contextlib
import re
import sys
import threading

import pytest
from hostile_peers import HostilePeers, resident_bytes, threads_of
from processes import ROOT, Processes, free_addresses

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.transports import transports_to

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="threads and memory of a process are read from /proc"),
]

JOB = ROOT / "tests" / "support" / "counting_job.py"
STEPS = 1500
IDLE = 1000


def environ(address, job, index):
    cluster = {"ps": [address], "chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    text = str({"cluster": cluster, "task": {"type": job, "index": index}}).replace("'", '"')
    return {"TF_CONFIG": text, "GLOBALSTEP_TRANSPORT": "tcp"}


def transport_addresses(address):
    """Where the PS task takes connections beside gRPC; it listens from then on."""
    transport = transports_to(f"grpc://{address}", "grpc")[0]
    try:
        found = {
            kind: transport.unary("OpenLane", pb.OpenLaneRequest(kind=kind), 5.0).result().address
            for kind in (pb.LANE_TCP, pb.LANE_UNIX)
        }
    finally:
        transport.close()
    return [f"127.0.0.1:{found[pb.LANE_TCP]}", "\0" + found[pb.LANE_UNIX]]


def test_a_job_ends_exactly_while_its_ports_are_scanned(tmp_path):
    address = free_addresses(1)[0]
    with Processes(tmp_path) as processes:
        ps = processes.start("ps", "-m", "globalstep.ps", "--bind", address, env={"GLOBALSTEP_TRANSPORT": "tcp"})
        processes.until("ps", "serving on")
        addresses = [address, *transport_addresses(address)]
        before, threads = resident_bytes(ps.pid), threads_of(ps.pid)
        most_threads, most_bytes = threads, before
        stop = threading.Event()

        def watch():
            nonlocal most_threads, most_bytes
            while not SYSTEM_CLOCK.wait(stop, 0.05):
                with contextlib.suppress(OSError, StopIteration):  # it has ended
                    most_threads = max(most_threads, threads_of(ps.pid))
                    most_bytes = max(most_bytes, resident_bytes(ps.pid))

        watcher = threading.Thread(target=watch, name="watch")
        watcher.start()
        try:
            with HostilePeers(addresses, IDLE) as peers:
                for job, index in (("chief", 0), ("worker", 0)):
                    processes.start(
                        job, JOB, "--last-step", STEPS, "--dir", tmp_path / "run", env=environ(address, job, index)
                    )
                processes.until_ended(["chief", "worker"], 100)
                # Whoever comes while it goes on is let in too.
                assert peers.counts["idle"] >= IDLE
                assert min(peers.counts[kind] for kind in ("http", "http2", "tls", "noise")) > 3
        finally:
            stop.set()
            watcher.join()
        codes = processes.wait(30)
        print(f"knocks {dict(peers.counts)}; {most_threads} threads, {most_bytes >> 20} MiB at most ({before >> 20})")
        assert codes == {"ps": 0, "chief": 0, "worker": 0}, processes.output("ps")[-3000:]
        runs = [int(re.search(r"done after (\d+) runs", processes.output(job))[1]) for job in ("chief", "worker")]
        assert sum(runs) >= STEPS  # the last run of each may be one that was refused
        assert "wrong" not in processes.output("chief") + processes.output("worker")
        # 32 strangers may be looked at at a time, some are on their way out; gRPC makes threads for itself. None of it
        # grows with the number of connections.
        assert most_threads < threads + IDLE // 2
        assert most_bytes < before + (200 << 20)
        assert f"model.ckpt-{STEPS}" in (tmp_path / "run" / "checkpoint").read_text()
