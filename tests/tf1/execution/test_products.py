"""Work in parts gives what numpy gives, leaves no thread behind, and gives the BLAS library its threads back."""

import numpy as np
import pytest

from globalstep.tf1.execution import products
from globalstep.tf1.execution.products import elementwise, in_parts, matmul


class FakeBlas:
    """A BLAS library whose number of threads is looked at."""

    def __init__(self, threads):
        self.threads = threads
        self.least = threads

    def set(self, threads):
        self.threads = threads
        self.least = min(self.least, threads)


@pytest.fixture
def blas(monkeypatch):
    fake = FakeBlas(4)
    monkeypatch.setattr(products._blas, "_get", lambda: fake.threads)
    monkeypatch.setattr(products._blas, "_set", fake.set)
    return fake


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    "shapes",
    [((700, 200), (200, 300)), ((300, 200), (200, 700)), ((3, 4), (4, 5)), ((0, 4), (4, 5)), ((300, 1), (1, 70))],
)
def test_a_product_is_what_numpy_gives(blas, shapes):
    a, b = (numbers(*shape) for shape in shapes)
    for one, other in ((a, b), (np.asfortranarray(a), b.T.copy().T)):
        found = matmul(one, other)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.matmul(one, other), rtol=1e-4, atol=1e-4)
    assert blas.threads == 4


@pytest.mark.parametrize(
    "shapes",
    [((640, 640), (640, 640)), ((640, 640), (640,)), ((640, 640), (1, 640)), ((640, 640), (640, 1)), ((640, 640), ()),
     ((5, 90, 1000), (1000,)), ((40, 20, 20, 20), (20,)), ((40, 20, 20, 20), (1, 20, 1, 20)), ((4, 3), (3,)), ((), ())],
)  # fmt: skip
def test_a_function_of_numbers_in_parts_is_what_numpy_gives(blas, shapes):
    a, b = (numbers(*shape) for shape in shapes)
    for one, other in ((a, b), (np.asfortranarray(a), b)):
        found = elementwise(np.subtract, one, other)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, one - other)


def test_operands_that_go_into_no_parts_are_left_to_numpy(blas):
    wide, rows = numbers(640, 640), numbers(3, 640, 640)
    np.testing.assert_array_equal(elementwise(np.add, wide, rows), wide + rows)
    np.testing.assert_array_equal(elementwise(np.add, wide, wide.astype(np.float64)), wide + wide.astype(np.float64))
    with pytest.raises(ValueError, match=r"\(640,640\) \(639,640\)"):
        elementwise(np.add, wide, wide[1:])


def test_shapes_that_do_not_fit_are_numpys_error(blas):
    with pytest.raises(ValueError, match="mismatch"):
        matmul(numbers(700, 300), numbers(299, 700))
    assert blas.threads == 4


def test_an_error_in_another_thread_comes_out(blas):
    def work(part):
        if part.start:
            raise KeyError(part.start)

    with pytest.raises(KeyError):
        in_parts(work, 2, 1 << 40)
    assert blas.threads == 4


def test_a_part_knows_how_numpy_is_to_take_overflows(blas):
    large = np.full(4, 3e38, np.float32)

    def work(part):
        large[part] *= 2

    with np.errstate(over="ignore"):
        in_parts(work, 4, 1 << 40)
    assert np.isinf(large).all()
