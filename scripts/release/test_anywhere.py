"""Runs the quick tests as on other machines: other processors, threads, locales, homes, orders, and under load.

Usage: test_anywhere.py [--only SETTING,SETTING] [--list] [PYTEST ARGUMENTS]

What this machine cannot be made to look like is skipped, with the reason. The exit code is 0 only if the tests passed
under every other setting.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The tests of `make test`, without files of pytest's own in the checkout.
QUICK = ("-q", "-p", "no:cacheprovider", "--quick")
BUSY_PROCESSES = 8
#: What each kernel of OpenBLAS needs of a processor, by numpy's names.
CORES = {"Prescott": "X86_V2", "Haswell": "X86_V3", "Zen": "X86_V3", "SkylakeX": "X86_V4"}
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Setting:
    """The circumstances of one run of the tests.

    Attributes:
        name: What the table calls it.
        environment: Variables of the environment that differ.
        cores: How many cores the tests may use; None for all.
        busy: How many processes do nothing but use a core beside the tests.
        why_not: Why this machine cannot run it; empty where it can.
    """

    name: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    cores: int | None = None
    busy: int = 0
    why_not: str = ""


def settings(scratch: Path) -> Iterator[Setting]:
    """Return all settings, those with homes and locales in folders below `scratch`."""
    features = processor_features()
    yield Setting("one core", cores=1)
    yield Setting("under load", busy=BUSY_PROCESSES)
    for threads in "1", "8":
        yield Setting(f"{threads} threads for BLAS", dict.fromkeys(THREADS, threads))
    for core, needs in CORES.items():
        why_not = "" if features.get(needs) else f"the processor has no {needs}"
        yield Setting(f"OpenBLAS {core}", {"OPENBLAS_CORETYPE": core}, why_not=why_not)
    dispatched = [name for name in dispatched_features() if features.get(name)]
    why_not = "" if dispatched else "numpy chooses no faster code on this processor"
    yield Setting("numpy's plain code", {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched)}, why_not=why_not)
    yield Setting("another time zone", {"TZ": "Asia/Kathmandu"})
    yield Setting("LANG=C", {"LANG": "C", "LC_ALL": "C"})
    yield _turkish(scratch / "locales")
    yield Setting("a home with a space and an umlaut", _home(scratch / "my h\u00f6me"))
    yield Setting("a read-only home", _read_only_home(scratch / "read-only"))
    for seed in range(5):
        yield Setting(f"PYTHONHASHSEED={seed}", {"PYTHONHASHSEED": str(seed)})
    seed = str(int(time.time()))
    yield Setting(f"random order, seed {seed}", {"GLOBALSTEP_TEST_ORDER": seed})


def processor_features() -> dict[str, bool]:
    """Return numpy's names of what a processor can do, and whether this one can."""
    from numpy._core import _multiarray_umath

    return dict(_multiarray_umath.__cpu_features__)


def dispatched_features() -> list[str]:
    """Return numpy's names of what it has faster code for."""
    from numpy._core import _multiarray_umath

    return list(_multiarray_umath.__cpu_dispatch__)


def _home(folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    return {"HOME": str(folder), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}


def _read_only_home(folder: Path) -> dict[str, str]:
    """Return a home in which nothing can be written: root may write in any folder, but in /proc."""
    if os.getuid() == 0:
        return {"HOME": "/proc", "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
    home = _home(folder)
    folder.chmod(0o500)
    return home


def _turkish(folder: Path) -> Setting:
    """Return the setting of a language in which "I" is not the capital of "i", whose locale is made in `folder`."""
    name, compiler = "tr_TR.UTF-8", shutil.which("localedef")
    why_not = "" if compiler else "localedef is missing"
    if compiler:
        folder.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(
            [compiler, "-i", "tr_TR", "-f", "UTF-8", str(folder / name)], capture_output=True, text=True, check=False
        )
        if not (folder / name).exists():
            why_not = made.stderr.strip().splitlines()[-1]
    return Setting(f"LANG={name}", {"LANG": name, "LC_ALL": name, "LOCPATH": str(folder)}, why_not=why_not)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(setting: Setting, arguments: Sequence[str], log: Path) -> tuple[int, str]:
    """Run the tests under a setting; return pytest's exit code, and what the table says of it."""
    changed = {**os.environ, **setting.environment}
    environment = {name: value for name, value in changed.items() if value or name not in setting.environment}
    command = [sys.executable, "-m", "pytest", *QUICK, *arguments]
    if setting.cores:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: setting.cores]))
        command = ["taskset", "-c", cores, *command]
    began = time.monotonic()
    with busy(setting.busy), log.open("w") as output:
        code = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    lines = log.read_text(errors="replace").strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    said = lines[-1].strip("= ") if lines else "nothing was printed"
    took = time.monotonic() - began
    return code, "\n    ".join([f"{said} ({took:.0f} s)", *failed, *([f"all of it: {log}"] if code else [])])


def main() -> int:
    """Run the settings that are asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="names of settings, or parts of them, with commas between")
    parser.add_argument("--list", action="store_true", help="print the settings, run nothing")
    options, arguments = parser.parse_known_args()
    scratch = Path(tempfile.mkdtemp(prefix="globalstep-anywhere-"))
    wanted = [part for part in options.only.split(",") if part]
    codes = []
    for number, setting in enumerate(settings(scratch)):
        if wanted and not any(part in setting.name for part in wanted):
            continue
        if options.list or setting.why_not:
            print(f"{setting.name}: {setting.why_not and 'skipped, ' + setting.why_not}".rstrip(": "), flush=True)
            continue
        code, said = run(setting, arguments, scratch / f"{number}.log")
        codes.append(code)
        print(f"{setting.name}: {said}", flush=True)
    if not any(codes):
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
