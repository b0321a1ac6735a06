"""gs.fit in a program that has replaced sys.stdout and sys.stderr, as many training scripts do."""

import io
import logging
import sys

import numpy as np
import pytest

import globalstep as gs


class Tee:
    """A logger with nothing but what print needs."""

    def __init__(self, file):
        self.file = file

    def write(self, text):
        self.file.write(text)


def closed():
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("launched", ["", "1"])
@pytest.mark.parametrize("stream", ["tee", "none", "closed", "tee of closed"])
def test_a_program_trains_whatever_its_streams_are(monkeypatch, stream, launched):
    kept = io.StringIO()
    monkeypatch.setenv("GLOBALSTEP_LAUNCH", launched)
    # Pytest's own handlers: with them the program would have set up logging by itself.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    replaced = {"tee": Tee(kept), "none": None, "closed": closed(), "tee of closed": Tee(closed())}[stream]
    monkeypatch.setattr(sys, "stdout", replaced)
    monkeypatch.setattr(sys, "stderr", replaced)

    def loss(params, x):
        return float(np.mean((params["w"] - x) ** 2)), {"w": 2 * (params["w"] - np.mean(x))}

    start = {"w": np.zeros(1, np.float32)}
    batches = [(np.ones(4, np.float32),)]
    result = gs.fit(start, loss, batches, optimizer=gs.optim.SGD(0.25), steps=10)
    assert result.step == 10
    if stream == "tee":
        assert "done: 10 steps" in kept.getvalue()
