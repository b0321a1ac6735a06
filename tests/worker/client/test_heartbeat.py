"""What a client tells with its heartbeats and hears of others."""

from __future__ import annotations

import math

import pytest
from counting_run import initialize

from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock
from globalstep.worker.client.client import ClusterClient


@pytest.mark.parametrize("speed", [3.0, 0.0, -1.0, math.nan, math.inf])
def test_workers_hear_how_fast_the_fastest_is(speed):
    ps = LocalPS(2, clock=ManualClock())
    clients = [ClusterClient(ps.transports(), task=f"/job:worker/task:{at}", member=False) for at in range(3)]
    try:
        clients[0].begin(sequencer=1, open=True)
        initialize(clients[0])
        for client in clients[1:]:
            client.refresh()
        beats = [client.heartbeat for client in clients]
        beats[0].inner_steps_per_sec, beats[1].inner_steps_per_sec = 2.0, speed
        for beat in [beats[1], *beats]:
            beat.beat()
        fastest = max(2.0, speed) if math.isfinite(speed) else 2.0
        # One whose speed does not count asks nothing, and is told nothing.
        assert [beat.most_inner_steps_per_sec for beat in beats] == [fastest, fastest if speed == 3.0 else 0.0, 0.0]
    finally:
        for client in clients:
            client.close()
