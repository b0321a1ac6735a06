"""`gs.app.run`: parses the flags and calls the program's `main`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from globalstep.tf1 import flags

__all__ = ["flags", "run"]


def run(main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Run the program: parse its flags, call `main`, exit with what it returns.

    Args:
        main: Function of the program's name and the arguments that are no flags; default the function
            `main` of the program's own file.
        argv: The command line, the program's name first; default `sys.argv`.
    """
    rest = flags.FLAGS(argv)
    # A program may define flags by absl, which TensorFlow's own are made of: those are on the same command line.
    if (absl_flags := sys.modules.get("absl.flags")) is not None:
        rest = absl_flags.FLAGS(rest, known_only=True)
    chosen = main if main is not None else sys.modules["__main__"].__dict__["main"]
    sys.exit(chosen(rest))
