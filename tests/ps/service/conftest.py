"""Fixtures of the tests of sockets."""

import pytest
from served_sockets import KINDS, Served


@pytest.fixture(params=list(KINDS))
def kind(request):
    return request.param


@pytest.fixture
def serve():
    """Makes a PS with sockets, as often as it is called."""
    made = []

    def make(**more):
        made.append(Served(**more))
        return made[-1]

    yield make
    for served in made:
        served.close()
