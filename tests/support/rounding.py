"""How far two computations of the same sums may be apart: bounds of the arithmetic, not of one machine."""

import numpy as np


def assert_equal_but_for_rounding(found, wanted, roundings, name="", terms=0.0):
    """Fail unless each element is as near as so many roundings of the largest element of `wanted`.

    A BLAS may add the products of a sum in any order, with or without fused multiply-add, and each addition rounds by
    at most half an eps of what it adds. Where large terms cancel, what is left has the error of the terms, so the bound
    is relative to the largest element of the array and not to the element.

    Args:
        found: An array, or what becomes one.
        wanted: An array of the same shape and dtype.
        roundings: How many roundings lie between the two, each of one eps of the dtype.
        name: What the array is, for the message.
        terms: How large the terms of its sums are, where all elements of the array may be smaller.
    """
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype, name
    assert found.shape == wanted.shape, name
    if not np.issubdtype(wanted.dtype, np.inexact):
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    largest = max(float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)), terms)
    bound = roundings * float(np.finfo(wanted.dtype).eps) * largest
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound, err_msg=name)
