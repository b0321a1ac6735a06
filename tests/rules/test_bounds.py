"""That `make bounds` would find a kernel that leaves its arrays: what it runs is only worth something then."""

from __future__ import annotations

import os

import numpy as np
import pytest

from globalstep.rules.momentum import Momentum

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_BOUNDSCHECK") != "1", reason="only under `make bounds`")


def test_an_index_beyond_an_array_is_an_error():
    values, slot, grad = np.zeros(8, np.float32), np.zeros(2, np.float32), np.ones(8, np.float32)
    numbers = np.float32(1), np.float32(1), False
    with pytest.raises(IndexError, match="out of bounds"):
        Momentum.dense_kernel(values, slot, grad, *numbers)
