"""Fixtures of the tests of losses of other frameworks."""

import pytest
from recording_cluster import recorded

import globalstep as gs

cluster = pytest.fixture(recorded)


@pytest.fixture
def session(cluster):
    """Open a session of these."""
    with gs.Session(cluster=cluster) as opened:
        yield opened
