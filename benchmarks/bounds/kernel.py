"""`python -m benchmarks.bounds.kernel`: the PS's Adam beside the same in C, in GB/s, turn by turn on the same arrays.

The C (adam.c beside this file) is compiled here and now by `gcc -O3 -march=native -fno-math-errno`: without the last,
sqrtf is a call and nothing is vectorized. Bytes are those that Adam must touch:
values and two slots read and written, a gradient read. The PS's kernel is called as the PS calls it, once with a
push of 25 M floats. One thread each. Prints one JSON object a round.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from globalstep.rules import get_rule

__all__ = ["compiled_adam", "main"]

_BYTES_PER_ELEMENT = 7 * 4
_HYPERS = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "beta1_power": 0.5, "beta2_power": 0.5}


def compiled_adam(folder: Path) -> Callable[..., None] | None:
    """Compile the C.

    Args:
        folder: For the library.

    Returns:
        A function of values, m, v and gradient (float32, contiguous, of one size); None where there is no gcc.
    """
    gcc = shutil.which("gcc")
    if gcc is None:
        return None
    library = folder / "adam.so"
    source = Path(__file__).with_name("adam.c")
    subprocess.run(
        [gcc, "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-o", library, source, "-lm"],
        check=True,
        capture_output=True,
    )
    function = ctypes.CDLL(str(library)).adam
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t] + [ctypes.c_float] * 4
    function.restype = None

    def adam(values: Any, m: Any, v: Any, grad: Any) -> None:
        numbers = (_HYPERS[name] for name in ("learning_rate", "beta1", "beta2", "epsilon"))
        function(*(array.ctypes.data for array in (values, m, v, grad)), values.size, *numbers)

    return adam


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds.kernel", description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=25_000_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args(argv)
    random = np.random.default_rng(3)
    values, m, v, grad = (random.random(args.elements, np.float32) for _ in range(4))
    rule = get_rule("adam")
    rule.prepare(np.dtype(np.float32))
    with tempfile.TemporaryDirectory(prefix="globalstep-kernel-") as folder:
        in_c = compiled_adam(Path(folder))
        ways: dict[str, Callable[[], None]] = {"ps": lambda: rule.dense(values, (m, v), grad, _HYPERS)}
        if in_c is not None:
            ways["c"] = lambda: in_c(values, m, v, grad)
        for way in ways.values():
            way()
        for number in range(args.rounds):
            record: dict[str, Any] = {"round": number, "elements": args.elements}
            for name, way in ways.items() if number % 2 == 0 else reversed(ways.items()):
                begin = time.perf_counter()
                way()
                record[f"{name}_gb_per_sec"] = args.elements * _BYTES_PER_ELEMENT / (time.perf_counter() - begin) / 1e9
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
