"""Pages of a library leave the process's memory, and come back when its code runs."""

import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np

from globalstep.rules.adam import Adam
from globalstep.rules.gradient_descent import GradientDescent
from globalstep.runtime.kernels import COMPILER, kernel


def resident_kb():
    total, mine = 0, False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            mine = words[-1].rpartition("/")[2].startswith(COMPILER)
        elif mine and words[0] == "Rss:":
            total += int(words[1])
    return total


def doubled(values):
    for at in range(values.size):
        values[at] *= 2


GradientDescent().prepare(np.float32)
after_rule = resident_kb()
values = np.ones(3, np.float32)
kernel(doubled)(values)
after_kernel = resident_kb()
Adam().prepare(np.float64)
print(after_rule, after_kernel, resident_kb(), int(values.sum()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is in memory")
def test_a_rule_whose_kernels_are_compiled_leaves_no_compiler_in_memory(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    printed = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True).stdout
    after_rule, after_kernel, after_second_rule, total = map(int, printed.split())
    assert total == 6  # what is given back still works
    # The library has some 130 MB, of which 60 and more were in memory.
    assert after_rule < 10_000
    assert after_kernel > after_rule
    assert after_second_rule < 10_000
