"""Compiled loops, kept as machine code in the user's cache folder; the compiler is imported where one is not there yet.

A process that finds its loops there imports LLVM alone, which loads them, and not numba: 50 MB and half a second less.
docs/design/kernels.md has the file's form, and when the loop is numba's after all.

Layer: shared. Threads: kernels may be called, and made ready, by several at once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.runtime.process_env import kernel_cache_directory

# numba reads this when it is imported: without it, kernels would be kept beside the installed package,
# which another user may not be able to write.
os.environ["NUMBA_CACHE_DIR"] = kernel_cache_directory(os.environ.get("NUMBA_CACHE_DIR"))

_log = logging.getLogger("globalstep")


#: How the file name of the compiler's library begins; what is compiled does not use it.
COMPILER = "libllvmlite"
#: What a kernel is called in its machine code.
ENTRY = "kernel"

Array = npt.NDArray[Any]
#: What matters of an argument: (dtype, dimensions) of an array, the type of a number; None: numba's business.
Kind = Any

#: The types of numbers, and of results by their annotation, as C has them.
_NUMBERS = {
    bool: ctypes.c_bool,
    int: ctypes.c_int64,
    float: ctypes.c_double,
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
    np.uint64: ctypes.c_uint64,
}
_RESULTS: dict[str, Any] = {"None": None, "bool": ctypes.c_bool, "int": ctypes.c_int64}


class Kernel:
    """A loop over arrays and numbers.

    It is compiled, or loaded, on the first call for each combination of dtypes. It releases the GIL, and neither fuses
    nor reorders arithmetic.

    Args:
        function: The loop. It calls those of its own file only, since no change of another file is seen. Where its
            result is annotated as None, bool or int, it needs no numba.
        text: The loop's text, where it was made and is not in its file.
    """

    def __init__(self, function: Callable[..., Any], text: str = "") -> None:
        self.function = function
        self._text = text
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._ready: dict[tuple[Kind, ...], Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Run the loop."""
        kinds = tuple([_kind(argument) for argument in arguments])
        ready = self._ready.get(kinds)
        return (self.ready(*arguments) if ready is None else ready)(*arguments)

    def ready(self, *examples: Any) -> Callable[..., Any]:
        """Give the loop for arguments of these dtypes and dimensions; it is compiled now, where it has to be.

        Returns:
            The loop, which does not look at what it is called with: contiguous arrays of those dtypes, or it reads and
            writes anywhere.
        """
        kinds = tuple([_kind(example) for example in examples])
        if kinds not in self._ready:
            result = self.function.__annotations__.get("return")
            native = None
            if None not in kinds and result in _RESULTS and _may_be_native():
                native = self._native(kinds, result)
            self._ready[kinds] = native or self._by_numba(examples)
        return self._ready[kinds]

    def _native(self, kinds: tuple[Kind, ...], result: str) -> Callable[..., Any] | None:
        """Load the machine code, and compile it first where the cache has none; None where the loop is numba's."""
        try:
            path = self._path(kinds)
            code = _read(path)
            if code is None:
                from globalstep.runtime.kernel_compiler import machine_code

                code = machine_code(self.function, kinds, result)
                _write(path, code)
            if not code:
                return None
            types: list[Any] = [ctypes.py_object if isinstance(kind, tuple) else _NUMBERS[kind] for kind in kinds]
            return ctypes.CFUNCTYPE(_RESULTS[result], *types)(_load(code))
        except Exception as error:
            # A loop without a source file, a numba that is not known; what is wrong with a loop, numba says again.
            _log.info("The kernel %s is called by numba: %r", self._name, error)
            return None

    def _path(self, kinds: tuple[Kind, ...]) -> str:
        """Give the file of the machine code: its name has a digest of all that the code depends on."""
        with open(self.function.__code__.co_filename, "rb") as source:
            what = [hashlib.sha256(source.read() + self._text.encode()).hexdigest(), self._name, *_machine()]
        what += [kind.__name__ if isinstance(kind, type) else str(kind) for kind in kinds]
        name = hashlib.sha256("\n".join(what).encode()).hexdigest()[:32]
        return os.path.join(os.environ["NUMBA_CACHE_DIR"], f"{self._name}-{name}.native")

    def _by_numba(self, examples: Sequence[Any]) -> Callable[..., Any]:
        """Give the loop as numba calls it, which looks at each call's arguments."""
        from globalstep.runtime.kernel_compiler import dispatcher

        frozen = [isinstance(example, np.ndarray) and not example.flags.writeable for example in examples]
        loop = dispatcher(self.function)

        def call(*arguments: Any) -> Any:
            # numba compiles for that flag, and once shall do.
            return loop(*[read_only(item) if of else item for item, of in zip(arguments, frozen, strict=True)])

        return call if any(frozen) else loop


def kernel(function: Callable[..., Any]) -> Kernel:
    """Compile a loop on first call for each dtype. It releases the GIL, and neither fuses nor reorders arithmetic.

    Numbers passed to a kernel have the arrays' dtype, and a kernel uses no literal but as an index:
    numba would compute `1.0 - x` in float64, which numpy would not.
    """
    return Kernel(function)


def read_only(array: Array) -> Array:
    """Give the same data as a read-only array: numba compiles for that flag, and once shall do."""
    view = array.view()
    view.flags.writeable = False
    return view


def _kind(argument: Any) -> Kind:
    if type(argument) is np.ndarray:
        plain = argument.flags.c_contiguous and argument.dtype.kind in "fiu" and argument.dtype.isnative
        return (argument.dtype, argument.ndim) if plain else None
    return type(argument) if type(argument) in _NUMBERS else None


@functools.cache
def _may_be_native() -> bool:
    """Whether machine code can take arrays as CPython and numpy pass them.

    Not where somebody has a wish of numba (NUMBA_BOUNDSCHECK, NUMBA_DISABLE_JIT), nor where an array's fields lie
    elsewhere than in the usual builds of CPython.
    """
    if any(name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR" for name in os.environ):
        return False
    array = np.zeros((2, 3))
    words = (ctypes.c_ssize_t * 5).from_address(id(array))
    if sys.implementation.name != "cpython" or words[2] != array.ctypes.data:
        return False
    return words[4] != 0 and tuple((ctypes.c_ssize_t * 2).from_address(words[4])) == array.shape


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding

    llvmlite.binding.initialize_native_target()
    llvmlite.binding.initialize_native_asmprinter()
    return llvmlite.binding


@functools.cache
def _machine() -> tuple[str, ...]:
    """What machine code depends on beside the loop and its arguments: its compiler, and the processor."""
    llvm = _llvm()
    with open(os.path.join(os.path.dirname(__file__), "kernel_compiler.py"), "rb") as compiler:
        maker = hashlib.sha256(compiler.read()).hexdigest()
    processor = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return maker, version("numba"), version("llvmlite"), np.__version__, sys.implementation.cache_tag or "", *processor


def _read(path: str) -> bytes | None:
    """Give what was kept, if it is there, whole and nobody else's; b"" says that it cannot be kept."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            digest, code = file.read(32), file.read()
    except OSError:
        return None
    return code if digest == hashlib.sha256(code).digest() else None


def _write(path: str, code: bytes) -> None:
    """Keep it, seen whole or not at all; a folder that takes nothing costs the next process its time."""
    temporary = f"{path}.{secrets.token_hex(4)}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError:
        pass


def _load(code: bytes) -> int:
    """Bring machine code into memory, for as long as the process lives; gives its address."""
    llvm = _llvm()
    target = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address: int = engine.get_function_address(ENTRY)
    engine.detach()
    return address


_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)")
_MADV_DONTNEED = 4  # of Linux, madvise(2)


def unchanged_mappings(lines: Iterable[str], name: str) -> Iterator[tuple[int, int]]:
    """Find the mappings of a file that hold nothing but what is in the file.

    Args:
        lines: Of /proc/PID/smaps.
        name: How the file's name begins.

    Yields:
        Address and length, in bytes, of each that can be neither written nor has been changed, by relocations say.

    >>> text = '''1000-3000 r-xp 00000000 08:01 7  /lib/libllvmlite.so
    ... Private_Dirty:         0 kB
    ... 3000-4000 r--p 00002000 08:01 7  /lib/libllvmlite.so
    ... Private_Dirty:         4 kB
    ... '''
    >>> [(hex(address), length) for address, length in unchanged_mappings(text.splitlines(), "libllvmlite")]
    [('0x1000', 8192)]
    """
    mapping: tuple[int, int] | None = None
    for line in lines:
        if line.startswith("Private_Dirty:"):
            if mapping is not None and line.split()[1] == "0":
                yield mapping
            mapping = None
        elif match := _MAPPING.match(line):
            first, end, rights, path = match.groups()
            mine = path.startswith("/") and os.path.basename(path).startswith(name) and "w" not in rights
            mapping = (int(first, 16), int(end, 16) - int(first, 16)) if mine else None


def give_back_library(name: str) -> None:
    """Take the pages of a library out of this process's memory, until they are used again.

    Only those that are as in the file. Does nothing where the system is not Linux. Thread-safe: another thread that
    runs the library's code meanwhile reads its pages again.

    Args:
        name: How the name of the library's file begins, "libllvmlite" say.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/smaps") as lines:
        mappings = list(unchanged_mappings(lines, name))
    for address, length in mappings:
        madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_DONTNEED)
