"""What tests of clients share: over how many PS tasks they are made."""

import pytest


@pytest.fixture(params=[1, 2, 3])
def shards(request):
    return request.param
