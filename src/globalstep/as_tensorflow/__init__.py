"""Programs that say `import tensorflow` run with globalstep, and no line of them changes.

`python -m globalstep.as_tensorflow script.py`, `globalstep launch --as-tensorflow`, or `install()` before the first
import of tensorflow. None of them acts unless asked for: without them `import tensorflow` means what it always does.

What is imported lies in the folder `importable`, which stands in PYTHONPATH: so processes that the program starts find
it, too.

Threads: install() is called once, by the thread that imports.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any

import globalstep
from globalstep.errors import FailedPreconditionError
from globalstep.lazy import all_names
from globalstep.runtime.process_env import ALIAS_FOLDER, environ_with_alias

__all__ = ["install"]

_NAME = "tensorflow"
#: TensorFlow's package of Estimators, since 1.13; it has the same paths.
_ESTIMATORS = "tensorflow_estimator"


class _Alias(types.ModuleType):
    """The module `tensorflow`: globalstep under another name and with the version that its names are of."""

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(globalstep, name)
        except AttributeError as error:
            text = str(error).replace("module 'globalstep'", f"module {_NAME!r}", 1)
            raise AttributeError(text, name=name, obj=None) from None
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(globalstep)})


class _Finder:
    """Finds `tensorflow.a.b` as the module `globalstep.a.b`, which stays one module with both names."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Give the module of globalstep; leave other names to Python.

        Raises:
            ModuleNotFoundError: If globalstep lacks it; says what to use instead where that is known.
        """
        root, dot, path_within = fullname.partition(".")
        if root != _ESTIMATORS and (root != _NAME or not dot):
            return None
        real = f"globalstep{dot}{path_within}"
        try:
            module = importlib.import_module(real)
        except ModuleNotFoundError as error:
            if error.name == real:
                return None
            if error.name is not None:
                raise
            text = str(error).replace("'globalstep.", f"'{_NAME}.")
            raise ModuleNotFoundError(text) from None
        return ModuleSpec(fullname, _Loader(sys.modules[_NAME] if module is globalstep else module))


class _Loader(Loader):
    """Puts a module that there is already under another name."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python: the module that it makes is thrown away, so that the real one keeps its own spec."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Replace the module that was made by the real one."""
        sys.modules[module.__name__] = self._module


def install() -> types.ModuleType:
    """Make `import tensorflow` mean globalstep, in this process and in those that it starts. A second call is harmless.

    Returns:
        The module `tensorflow`.

    Raises:
        FailedPreconditionError: If another tensorflow is imported already.
    """
    there = sys.modules.get(_NAME)
    if isinstance(there, _Alias):
        return there
    # While importable/tensorflow is being imported, it is the one there.
    if there is not None and not str(getattr(there, "__file__", None)).startswith(ALIAS_FOLDER):
        raise FailedPreconditionError(
            f"A tensorflow is imported already, from {getattr(there, '__file__', None)}; objects of two libraries do "
            "not mix. Call globalstep.as_tensorflow.install() before the first import of tensorflow, or start the "
            "program by `python -m globalstep.as_tensorflow`."
        )
    alias = _Alias(_NAME, globalstep.__doc__)
    alias.__dict__.update(
        __all__=sorted(all_names(globalstep)),
        __file__=globalstep.__file__,
        __path__=[],
        __spec__=ModuleSpec(_NAME, None, origin=globalstep.__file__, is_package=True),
        # Programs choose by it between old and new names.
        __version__=globalstep.VERSION,
    )
    sys.modules[_NAME] = alias
    if _Finder not in sys.meta_path:
        # Before Python's own, which would read the files of globalstep a second time, as other modules.
        sys.meta_path.insert(0, _Finder)
    os.environ.update(environ_with_alias(os.environ))
    return alias
