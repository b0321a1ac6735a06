"""Random rows that a PS draws: the same for any number of parts, of their law, and refused where they cannot be."""

import numpy as np
import pytest

from globalstep.errors import InvalidArgumentError
from globalstep.wire.draws import Draw

LAWS = [Draw("uniform", -1.0, 3.0, 7), Draw("normal", 1.0, 0.5, 7), Draw("truncated_normal", 1.0, 0.5, 7)]


@pytest.mark.parametrize("draw", LAWS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_is_the_same_in_any_part(draw, dtype):
    # More than a block of 2**18 elements, and no multiple of one.
    whole = draw.rows((20_000, 33), dtype)
    assert whole.dtype == dtype
    for first, last in ((0, 1), (1, 9000), (7943, 7945), (19_999, 20_000)):
        np.testing.assert_array_equal(draw.of_part(first).rows((last - first, 33), dtype), whole[first:last])


@pytest.mark.parametrize("draw", LAWS)
def test_the_law(draw):
    found = draw.rows((40_000, 10)).astype(np.float64)
    wanted = {"uniform": (1.0, 4 / 12**0.5), "normal": (1.0, 0.5), "truncated_normal": (1.0, 0.5 * 0.8796)}[draw.law]
    np.testing.assert_allclose((found.mean(), found.std()), wanted, atol=0.01)
    if draw.law == "uniform":
        assert found.min() >= -1
        assert found.max() <= 3
    if draw.law == "truncated_normal":
        assert np.abs(found - 1).max() <= 1.0000001


def test_a_seed_is_another_table():
    draw = LAWS[1]
    assert not np.array_equal(draw.rows((3, 4)), Draw("normal", 1.0, 0.5, 8).rows((3, 4)))


def test_the_numbers_stay_what_they_are():
    # A log that is played again, with another version of numpy say, must come to the same values.
    found = Draw("normal", 0.0, 1.0, 42, row=100_000).rows((2, 2), "float64")
    np.testing.assert_allclose(found, GOLDEN, rtol=1e-12)


GOLDEN = [[0.020285982619378976, -0.07219515543321664], [-0.7364712813797047, -0.33492027186809387]]


@pytest.mark.parametrize(
    ("draw", "dtype", "shape", "said"),
    [
        (Draw("normal", 0.0, 1.0, 1), "int32", (3, 2), "float32 or float64"),
        (Draw("normal", 0.0, 1.0, 1), "float32", (), "at least one dimension"),
        (Draw("normal", 0.0, 1.0, 1), "float32", (1, 1 << 20), "262144 at most"),
        (Draw("cauchy", 0.0, 1.0, 1), "float32", (3, 2), "the law 'cauchy' is none of uniform, normal, trunc"),
        (Draw("normal", float("nan"), 1.0, 1), "float32", (3, 2), "finite numbers"),
        (Draw("normal", 0.0, 1.0, 1, row=-1), "float32", (3, 2), "a first row"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, dtype, shape, said):
    with pytest.raises(InvalidArgumentError, match=said):
        draw.check("table", dtype, shape)
