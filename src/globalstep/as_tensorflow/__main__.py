"""`python -m globalstep.as_tensorflow`: starts Python such that `import tensorflow` means globalstep.

What follows is Python's own command line: `script.py --steps 10`, `-m package.module`, `-c "..."`; options of Python
itself stand before either `-m`. The process becomes that Python, so signals and exit codes are the program's.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from globalstep.runtime.process_env import ALIAS_FOLDER, environ_with_alias

_USAGE = """usage: python -m globalstep.as_tensorflow script.py [ARGS ...]
       python -m globalstep.as_tensorflow -m MODULE [ARGS ...]
       python -m globalstep.as_tensorflow --path

Runs a program written for TensorFlow 1.x with globalstep, and no line of it changes. --path prints what to put into
PYTHONPATH where something else starts the program."""


def main() -> NoReturn:
    """Become the Python that runs the program."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--path":
        print(ALIAS_FOLDER)
        sys.exit(0)
    if sys.flags.ignore_environment:
        sys.exit("globalstep.as_tensorflow: Python's options -E and -I ignore PYTHONPATH, by which tensorflow is found")
    # orig_argv: the interpreter, its options, -m, the name of this module, the rest.
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(arguments)]
    while options and not options.pop().startswith("-m"):
        pass
    os.execve(sys.executable, [sys.executable, *options, *arguments], environ_with_alias(os.environ))


if __name__ == "__main__":
    main()
