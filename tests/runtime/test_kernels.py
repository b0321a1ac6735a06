"""Compiled loops: kept as machine code that needs no numba, and numba's where that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from globalstep import rules
from globalstep.runtime import kernels
from globalstep.runtime.kernels import kernel, read_only


def run_python(program, **environ):
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environ}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "home",
    ['raise RuntimeError("Could not determine home directory.")', 'return "/proc/self"'],
    ids=["a uid of no user", "a read-only home"],
)
def test_a_user_without_a_home_compiles_into_a_folder_of_its_own(tmp_path, home):
    """As in containers that are run under a uid of their own choosing, or with a read-only file system."""
    program = f"""
import platformdirs
def no_home(*_):
    {home}
platformdirs.user_cache_dir = no_home
import os
from globalstep.runtime.kernels import kernel
print(os.environ["NUMBA_CACHE_DIR"])
print(oct(os.stat(os.environ["NUMBA_CACHE_DIR"]).st_mode & 0o777))
"""
    environ = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | {
        "TMPDIR": str(tmp_path)
    }
    found = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    folder, mode = found.stdout.split()
    assert folder.startswith(str(tmp_path))
    assert mode == "0o700"
    assert not os.path.exists(folder)  # it ends with the process


def test_the_next_process_takes_the_kernels_of_every_rule_without_numba():
    program = """
import sys
import numpy as np
from globalstep.rules import BUILT_IN, get_rule
from globalstep.runtime.kernels import read_only
from globalstep.wire import packing
from globalstep.wire.sparse_rows import merge_rows
from globalstep.proto import globalstep_pb2 as pb
for kind in BUILT_IN:
    for dtype in (np.float32, np.float64):
        get_rule(kind).prepare(np.dtype(dtype))
merge_rows(np.array([7, 2, 7]), np.ones((3, 2), np.float32))
for form in (pb.FORM_BFLOAT16, pb.FORM_INT8):
    packing.rounded(np.ones(3, np.float32), form)
print("numba" in sys.modules, "llvmlite" in sys.modules)
"""
    run_python(program)  # compiles what is not there yet
    assert run_python(program) == ["False", "True"]


def test_who_has_a_wish_of_numba_gets_numba():
    program = "import sys; from globalstep.rules import get_rule; import numpy; get_rule('momentum').prepare("
    program += "numpy.dtype('float32')); print('numba' in sys.modules)"
    run_python(program)
    assert run_python(program) == ["False"]
    assert run_python(program, NUMBA_BOUNDSCHECK="1") == ["True"]


#: Every rule that has a dense kernel of its own.
KERNELS = {kind: rules.get_rule(kind) for kind in ("adam", "ftrl", "lion", "momentum", "proximal_adagrad")}


@pytest.fixture
def compiler():
    """What compiles, with numba, which takes a third of a second to import."""
    from globalstep.runtime import kernel_compiler

    return kernel_compiler


@pytest.mark.parametrize("kind", KERNELS)
def test_machine_code_and_numba_give_the_same_bits(kind, compiler):
    """Also of numbers that no computation likes: infinite, too small to be normal, none."""
    rule, rng = KERNELS[kind], np.random.default_rng(5)
    numbers = rule.numbers(dict.fromkeys((*rule.hypers, *rule.scalars), 0.3), np.float32)
    arrays = [rng.integers(0, 1 << 32, 4099, np.uint32).view(np.float32) for _ in range(2 + len(rule.slots))]
    copies = [array.copy() for array in arrays]
    native = rule.dense_kernel.ready(*arrays, *numbers)
    assert hasattr(native, "argtypes")

    native(*arrays, *numbers)
    compiler.dispatcher(rule.dense_kernel.function)(*copies[:-1], read_only(copies[-1]), *numbers)

    for array, copy in zip(arrays, copies, strict=True):
        # What a number that is none carries besides depends on the order of a sum's terms.
        np.testing.assert_array_equal(np.isnan(array), np.isnan(copy))
        there = ~np.isnan(array)
        np.testing.assert_array_equal(array.view(np.uint32)[there], copy.view(np.uint32)[there])


def doubled(values: np.ndarray, by: float) -> None:
    for i in range(values.size):
        values[i] *= by


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def kept(folder):
    return sorted(folder.glob("*.native"))


def run(loop):
    """The values that a loop gives, and whether it was machine code."""
    values = np.ones(5, np.float32)
    loop(values, np.float32(2))
    return values.tolist() == [2] * 5, hasattr(loop.ready(values, np.float32(2)), "argtypes")


@pytest.fixture
def compiles(compiler, monkeypatch):
    """How often a loop is compiled."""
    was, calls = compiler.machine_code, []
    monkeypatch.setattr(compiler, "machine_code", lambda *asked: calls.append(asked) or was(*asked))
    return calls


def test_a_loop_is_compiled_once(folder, compiles):
    for _ in range(2):
        assert run(kernel(doubled)) == (True, True)
    assert len(compiles) == len(kept(folder)) == 1


@pytest.mark.parametrize(
    "damage", [lambda code: code[:-1], lambda code: code[:90] + b"x" + code[91:], lambda code: b""]
)
def test_a_damaged_file_is_not_used_but_replaced(folder, compiles, damage):
    run(kernel(doubled))
    (file,) = kept(folder)
    file.write_bytes(damage(file.read_bytes()))

    assert run(kernel(doubled)) == (True, True)
    assert len(compiles) == 2
    assert run(kernel(doubled)) == (True, True)
    assert len(compiles) == 2


@pytest.mark.parametrize("place", range(8))
def test_machine_code_of_another_version_or_processor_is_not_used(folder, compiles, monkeypatch, place):
    run(kernel(doubled))
    other = list(kernels._machine())
    other[place] = "another"
    monkeypatch.setattr(kernels, "_machine", lambda: tuple(other))

    assert run(kernel(doubled)) == (True, True)
    assert len(compiles) == len(kept(folder)) == 2


def test_a_loop_that_was_changed_is_compiled_anew(folder, compiles):
    for factor in (2, 3):
        source = folder / "loops.py"
        source.write_text(
            f"def loop(values, by):\n    for i in range(values.size):\n        values[i] = {factor} * by\n"
        )
        names = {"__name__": "loops"}
        exec(compile(source.read_text(), source, "exec"), names)
        names["loop"].__annotations__["return"] = "None"
        values = np.zeros(2, np.int64)
        kernel(names["loop"])(values, 5)
        assert values.tolist() == [5 * factor] * 2
    assert len(compiles) == 2


def test_a_folder_that_takes_nothing_costs_no_more_than_time(folder, compiles, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/self/none")
    for _ in range(2):
        assert run(kernel(doubled)) == (True, True)
    assert len(compiles) == 2


def failing(values: np.ndarray, by: float) -> None:
    if by < 0:
        raise ValueError("negative")
    values[:] = by


def test_a_loop_that_raises_errors_is_numbas_and_that_is_known_next_time(folder, compiles):
    values = np.zeros(2, np.float32)
    for _ in range(2):
        loop = kernel(failing)
        loop(values, np.float32(3))
        with pytest.raises(ValueError, match="negative"):
            loop(values, np.float32(-1))
    assert values.tolist() == [3, 3]
    assert len(compiles) == 1


def total(values: np.ndarray) -> float:
    return values.sum()


def wrongly_annotated(values: np.ndarray) -> int:
    return values[0]


def test_a_result_that_is_not_as_it_is_annotated_is_numbas(folder, caplog):
    caplog.set_level("INFO", "globalstep")
    assert kernel(wrongly_annotated)(np.array([2.5])) == 2.5
    assert "its result is annotated as int, and is float64" in caplog.text


def test_arrays_and_results_that_machine_code_does_not_take_are_numbas(folder, compiles):
    strided, swapped = np.ones((3, 4), np.float32)[:, 1], np.ones(3, ">f4")
    kernel(doubled)(strided, np.float32(2))
    assert strided.tolist() == [2, 2, 2]
    assert kernel(total)(strided) == kernel(total)(read_only(strided.copy())) == 6
    import numba

    with pytest.raises(numba.NumbaError):
        kernel(total)(swapped)
    assert not compiles


def test_a_numba_that_is_not_known_runs_the_loop_itself(folder, compiler, monkeypatch, caplog):
    monkeypatch.setattr(compiler, "machine_code", lambda *asked: asked[0].nothing)
    caplog.set_level("INFO", "globalstep")
    assert run(kernel(doubled)) == (True, False)
    assert "doubled is called by numba: AttributeError" in caplog.text
    assert kept(folder) == []


def test_a_result_is_given_and_other_types_are_compiled_for_themselves(folder):
    @kernel
    def found(values: np.ndarray, what: int) -> bool:
        last = False
        for i in range(values.size):
            last = values[i] == what
        return last

    for dtype in (np.int64, np.uint32, np.float64):
        assert found(np.array([4, 5], dtype), 5) is True
        assert found(np.array([4, 5], dtype), 6) is False
    assert len(kept(folder)) == 3


def test_other_threads_run_meanwhile():
    @kernel
    def until_told(begun: np.ndarray, told: np.ndarray, most: int) -> bool:
        for _ in range(most):
            begun[0] += 1  # may be what `told` is, for all that the compiler knows: so that is read again
            if told[0] > 0:
                return True
        return False

    begun, told, ended = np.zeros(1, np.int64), np.zeros(1, np.int64), []
    loop = until_told.ready(begun, told, 1)
    assert hasattr(loop, "argtypes")
    thread = threading.Thread(target=lambda: ended.append(loop(begun, told, 1 << 31)))
    thread.start()
    while begun[0] == 0:
        pass
    told[0] = 1
    thread.join()
    assert ended == [True]


def folder_that_is_taken(wanted, cache):
    program = 'import os, globalstep.runtime.kernels; print(os.environ["NUMBA_CACHE_DIR"])'
    environ = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environ |= {"XDG_CACHE_HOME": str(cache)} | ({"NUMBA_CACHE_DIR": str(wanted)} if wanted else {})
    found = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path):
    """What lies there is run: another user's machine code would be this one's."""
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir(mode=0o700)
    assert folder_that_is_taken(None, own) == str(own / "globalstep" / "kernels")
    assert os.stat(own / "globalstep" / "kernels").st_mode & 0o777 == 0o700
    assert folder_that_is_taken(own / "numba", tmp_path) == str(own / "numba")
    shared.mkdir()
    shared.chmod(0o777)
    for wanted in (None, shared, shared / "deeper"):
        assert not folder_that_is_taken(wanted, shared).startswith(str(shared))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_or_a_file_of_another_user_is_not_used(tmp_path):
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    os.chown(other, 54002, -1)
    assert not folder_that_is_taken(None, other).startswith(str(other))
    path = tmp_path / "kernel.native"
    kernels._write(str(path), b"code")
    assert kernels._read(str(path)) == b"code"
    os.chown(path, 54002, -1)
    assert kernels._read(str(path)) is None
    os.chown(path, 0, -1)
    (tmp_path / "link.native").symlink_to(path)
    assert kernels._read(str(tmp_path / "link.native")) is None
