"""Generate `proto/*_pb2.py`, `*_pb2_grpc.py` and their `.pyi` from `proto/globalstep.proto`.

With `--check`, write nothing and fail if the committed files are not what would be generated.
Needs the `dev` extra (grpcio-tools, mypy-protobuf).

protoc writes into the code that it needs the grpcio and protobuf of its own version, though an older protoc, of the
lower bounds in pyproject.toml, writes the same code (but for these lines, `(object)` behind classes and an f before a
string). So the bounds are written there instead; `make package` tries the code at them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "proto" / "globalstep.proto"
NAMES = ("globalstep_pb2.py", "globalstep_pb2.pyi", "globalstep_pb2_grpc.py", "globalstep_pb2_grpc.pyi")


def lower_bound(package: str) -> str:
    """Give the oldest version of a dependency that pyproject.toml allows."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return next(bound for name, _, bound in (each.partition(">=") for each in dependencies) if name == package)


def with_bounds(code: str, grpcio: str, protobuf: str) -> str:
    r"""Give generated code that asks for these versions at least.

    >>> with_bounds("GRPC_GENERATED_VERSION = '1.85.1'\n", "1.72.1", "6.30.0")
    "GRPC_GENERATED_VERSION = '1.72.1'\n"
    >>> print(with_bounds("# Protobuf Python Version: 7.35.1\n    PUBLIC,\n    7,\n    35,\n    1,\n", "", "6.30.0"))
    # Protobuf Python Version: 6.30.0
        PUBLIC,
        6,
        30,
        0,
    <BLANKLINE>
    """
    code = re.sub(r"(?<=^GRPC_GENERATED_VERSION = ')[\d.]+", grpcio, code, flags=re.MULTILINE)
    code = re.sub(r"(?<=^# Protobuf Python Version: ).+", protobuf, code, flags=re.MULTILINE)
    numbers = "".join(f"    {number},\n" for number in protobuf.split("."))
    return re.sub(r"(?<=PUBLIC,\n)(?:    \d+,\n){3}", numbers, code)


def generate(into: Path) -> None:
    """Write the generated files into the folder `into`."""
    # protoc derives the import path from the file's path: a tree globalstep/proto/ makes the generated
    # code import `globalstep.proto`, which is where it is installed.
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "in" / "globalstep" / "proto"
        source.mkdir(parents=True)
        (source / CONTRACT.name).write_text(CONTRACT.read_text())
        out = Path(scratch) / "out"
        out.mkdir()
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{Path(scratch) / 'in'}"]
            + [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
            + [str(source / CONTRACT.name)],
            check=True,
            env={"PATH": path},
        )
        bounds = lower_bound("grpcio"), lower_bound("protobuf")
        for name in NAMES:
            code = (out / "globalstep" / "proto" / name).read_text()
            (into / name).write_text(with_bounds(code, *bounds))


def main() -> int:
    """Generate, or check; the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare with what is committed")
    if not parser.parse_args().check:
        generate(CONTRACT.parent)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        stale = [name for name in NAMES if (Path(fresh) / name).read_text() != (CONTRACT.parent / name).read_text()]
    for name in stale:
        print(f"proto/{name} is not what proto/globalstep.proto generates: run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
