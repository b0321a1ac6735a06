"""Where compiled kernels are kept."""

import os
import subprocess
import sys

import pytest


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
