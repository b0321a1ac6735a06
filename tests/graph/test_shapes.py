"""Static shapes as programs write them."""

import numpy as np
import pytest

import globalstep as gs


def test_a_size_that_a_program_has_divided_is_a_whole_number_or_refused():
    assert gs.TensorShape([10 / 2, None]).as_list() == [5, None]
    assert gs.Dimension(np.float64(3)) == 3
    assert gs.get_variable("halves", [8 / 2], initializer=gs.zeros_initializer()).get_shape().as_list() == [4]
    with pytest.raises(ValueError, match=r"Ambiguous dimension: 2\.5"):
        gs.TensorShape([5 / 2])
