"""A thousand clients of one PS task over gRPC, with its default limits: served, or refused by name; never left waiting.

    python tests/integration/security/thousand_clients.py [--clients 1000] [--pushes 3]

All are in this process, and the PS task in another. Meanwhile somebody else asks for its Status and gives it signs of
life all the time: each is to be answered within a second. Exit code 0 when all that holds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from counting_run import initialize, step_push

from globalstep.errors import OpError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

LIMIT_SECS = 1.0


def serve(connection):
    """Be the PS task until told to end."""
    from globalstep.ps.server import PSOptions, PSServer

    server = PSServer(PSOptions(bind="localhost:0"))
    server.start()
    connection.send(server.address)
    connection.recv()
    server.close()


def watch(address, over, waits):
    """Ask for Status and give signs of life until it is over; notes how long each answer took."""
    (transport,) = transports_to(f"grpc://{address}")
    beat = pb.HeartbeatRequest(client="watcher", lease_secs=15.0)
    while not over.is_set():
        for method, request in (("Status", pb.StatusRequest(brief=True)), ("Heartbeat", beat)):
            began = time.monotonic()
            try:
                transport.unary(method, request, 30.0).result()
            except OpError as error:
                waits[f"{method} failed: {error}"] = 1e9
            waits[method] = max(waits.get(method, 0.0), time.monotonic() - began)
        over.wait(0.05)
    transport.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--pushes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=64)
    args = parser.parse_args()
    here, there = multiprocessing.get_context("spawn").Pipe()
    task = multiprocessing.get_context("spawn").Process(target=serve, args=(there,))
    task.start()
    address = here.recv()
    chief = ClusterClient(transports_to(f"grpc://{address}"), rng=random.Random(0), member=False)
    initialize(chief)
    over, waits, outcomes = threading.Event(), {}, Counter()
    watcher = threading.Thread(target=watch, args=(address, over, waits), name="watcher")
    watcher.start()
    clients = [
        ClusterClient(transports_to(f"grpc://{address}"), rng=random.Random(n), member=False, retry_secs=1.0)
        for n in range(args.clients)
    ]

    def push(client):
        try:
            client.refresh()
            client.push(step_push())
            return "served"
        except ResourceExhaustedError as error:
            return f"refused: {type(error).__name__}"
        except OpError as error:
            return f"{type(error).__name__}: {error.message[:160]}"

    began = time.monotonic()
    with ThreadPoolExecutor(args.threads) as pool:
        for _ in range(args.pushes):
            outcomes.update(pool.map(push, clients))
    secs = time.monotonic() - began
    over.set()
    watcher.join()
    steps = chief.global_steps()["global_step"]
    for client in [*clients, chief]:
        client.close()
    here.send("end")
    task.join()
    print(f"{args.clients} clients, {args.pushes} pushes each, in {secs:.1f} s; global_step {steps}")
    for what, count in outcomes.most_common():
        print(f"  {count:6d} {what}")
    for what, longest in waits.items():
        print(f"  longest {what}: {longest:.3f} s")
    good = steps == outcomes["served"] and all(secs < LIMIT_SECS for secs in waits.values())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
