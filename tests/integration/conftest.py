"""A fixture of the tests that start processes."""

import pytest
from processes import Processes


@pytest.fixture
def processes(tmp_path):
    """Start processes, which are ended with the test."""
    with Processes(tmp_path) as running:
        yield running
