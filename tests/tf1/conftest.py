"""Fixtures of the tests of TensorFlow's functions."""

import pytest
from small_model import LocalCluster

import globalstep as gs


@pytest.fixture
def session():
    """Open a session of the default graph."""
    with gs.Session() as opened:
        yield opened


@pytest.fixture
def cluster():
    """Give two PS tasks in this process."""
    made = LocalCluster(shards=2)
    yield made
    made.close()
