"""A fixture of the tests of inputs."""

import pytest

import globalstep as gs


@pytest.fixture
def sess():
    """Open a session of a graph of its own."""
    with gs.Graph().as_default(), gs.Session() as opened:
        yield opened
