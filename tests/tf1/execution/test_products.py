"""Work in parts gives what numpy gives, leaves no thread behind, and gives the BLAS library its threads back."""

import threading

import numpy as np
import pytest

from globalstep.tf1.execution import products
from globalstep.tf1.execution.products import elementwise, halved, in_parts, matmul, offered, one_thread_each


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
    ("rows", "inner", "columns", "least"), [(64, 64, 64, 4), (64, 64, 65, 1), (1, 128, 64, 4), (1, 128, 65, 1)]
)
def test_what_the_library_does_by_one_thread_is_left_to_it(blas, rows, inner, columns, least):
    matmul(numbers(rows, inner), numbers(inner, columns))
    assert (blas.threads, blas.least) == (4, least)


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


def test_a_large_function_of_numbers_takes_several_threads(blas):
    seen, together = set(), threading.Barrier(4, timeout=100)

    def double(values, out):
        together.wait()
        seen.add(threading.current_thread())
        return np.add(values, values, out=out)

    elementwise(double, numbers(1000, 1000))
    assert len(seen) == 4


def test_half_of_the_threads_are_left_to_others(blas):
    parts = []
    with halved():
        in_parts(parts.append, 10, 1 << 40)
        there = offered(lambda: in_parts(parts.append, 10, 1 << 40), 1 << 30)
        with halved():
            in_parts(parts.append, 10, 1 << 40)
    there.result()
    assert len(parts) == 2 + 1 + 2
    in_parts(parts.append, 10, 1 << 40)
    assert len(parts) == 5 + 4


def test_work_is_offered_where_there_is_another_thread_for_it(blas):
    assert offered(lambda: 1, 1 << 30).result() == 1
    assert offered(lambda: 1, 1 << 10) is None
    blas.threads = 1
    assert offered(lambda: 1, 1 << 30) is None


def test_shapes_that_do_not_fit_are_numpys_error(blas):
    with pytest.raises(ValueError, match="mismatch"):
        matmul(numbers(700, 300), numbers(299, 700))
    assert blas.threads == 4


@pytest.mark.parametrize(
    ("count", "work", "expected"), [(10, 1 << 40, 4), (2, 1 << 40, 2), (10, 10, 1), (0, 1 << 40, 1)]
)
def test_parts_cover_everything_once(blas, count, work, expected):
    done = []
    in_parts(done.append, count, work)
    done.sort(key=lambda part: part.start)
    assert len(done) == expected
    assert [at for part in done for at in range(part.start, part.stop)] == list(range(count))


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


def test_the_last_to_leave_gives_the_threads_back(blas):
    with one_thread_each() as configured:
        assert (configured, blas.threads) == (4, 1)
        with one_thread_each() as again:
            assert again == 4
        assert blas.threads == 1
    assert blas.threads == 4


def test_another_library_keeps_its_own_threads(monkeypatch):
    monkeypatch.setattr(products._blas, "_get", None)
    parts = []
    in_parts(parts.append, 10, 1 << 40)
    assert parts == [slice(0, 10)]
    np.testing.assert_array_equal(matmul(np.eye(3), np.eye(3)), np.eye(3))
