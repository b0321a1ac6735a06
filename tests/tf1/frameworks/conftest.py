"""Fixtures of the tests of losses of other frameworks."""

import pytest
from recording_cluster import RecordingCluster

import globalstep as gs


@pytest.fixture
def cluster():
    """Give PS tasks in this process that record what they are asked."""
    recording = RecordingCluster()
    yield recording
    recording.close()


@pytest.fixture
def session(cluster):
    """Open a session of these."""
    with gs.Session(cluster=cluster) as opened:
        yield opened
