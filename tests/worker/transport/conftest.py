"""Fixtures of the tests of transports."""

import pytest
from served_tasks import joining, starting


@pytest.fixture
def serving():
    """Start PS tasks; gives them."""
    with starting() as start:
        yield start


@pytest.fixture
def joined():
    """Make clients of servers over a transport."""
    with joining() as join:
        yield join
