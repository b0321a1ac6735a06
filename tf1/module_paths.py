"""Module paths of TensorFlow's own code, from which programs import what has a public name.

`from tensorflow.python.framework import ops` names a file of TensorFlow; what is in it is `tf.convert_to_tensor` and
so on. A module of such a path has no names of its own: it looks for them in public namespaces.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

from globalstep.lazy import Namespace, all_names

_INTERNAL = (
    "of TensorFlow's own modules those are here that programs use, with the names that are public or often used; "
    "docs/compatibility.md lists the modules."
)


class _Hints(Mapping[str, str]):
    """Name that a module path lacks -> what to use instead, or where to look."""

    def __init__(self, module: ModulePath) -> None:
        self.own: dict[str, str] = {}
        self._module = module

    def __getitem__(self, name: str) -> str:
        if name.startswith("__"):
            # Python asks modules for these by itself.
            raise KeyError(name)
        tables = [
            getattr(importlib.import_module(_module_of(one)), "public_absent", {}) for one in self._module.sources
        ]
        return next((table[name] for table in (self.own, *tables) if name in table), _INTERNAL)

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


class ModulePath(types.ModuleType):
    """A module that finds its names in public namespaces.

    Attributes:
        sources: Modules of globalstep, searched in this order for a name; "module:name" for one name
            that is not public there.
        public_absent: Name -> what to use instead; see globalstep.lazy.AbsentImports.
    """

    sources: tuple[str, ...]
    public_absent: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            # Of `import *`: what else is looked for here may hide what a program has by that name.
            return sorted(_public(self.sources[0])) if self.sources else []
        if not name.startswith("__"):
            for source in self.sources:
                if name in _public(source):
                    value = getattr(importlib.import_module(_module_of(source)), name)
                    self.__dict__[name] = value
                    return value
        hint = self.public_absent.get(name)
        text = f"module {self.__name__!r} has no attribute {name!r}"
        raise AttributeError(f"{text}: {hint}" if hint else text, name=name, obj=None)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(public for source in self.sources for public in _public(source))})


def _module_of(source: str) -> str:
    return source.partition(":")[0]


def _public(source: str) -> tuple[str, ...]:
    """Give the public names of a namespace or a module, or the one that "module:name" says."""
    single = source.partition(":")[2]
    if single:
        return (single,)
    module = importlib.import_module(_module_of(source))
    if isinstance(module, Namespace):
        return tuple(all_names(module))
    return tuple(getattr(module, "__all__", ()))


def module_paths(root: str, table: Mapping[str, str], absent: Mapping[str, str] | None = None) -> list[str]:
    """Make the modules of some paths, and those above them.

    Args:
        root: Full name of the module below which they are; it exists.
        table: Path below `root` -> where its names are, separated by spaces; see ModulePath.sources. ``gs`` stands for
            globalstep.
        absent: Name below a path of the table that is not here -> what to use instead.

    Returns:
        The first parts of the paths.
    """
    top = sys.modules[root]
    if "public_absent" not in top.__dict__:
        top.__class__ = ModulePath
        top.__dict__.update(__path__=[], sources=(), public_absent=_Hints(cast("ModulePath", top)))
    for path in sorted(table):
        parent, full = top, root
        for part in path.split("."):
            full = f"{full}.{part}"
            if full not in sys.modules:
                module = ModulePath(full, f"The names that TensorFlow's {full.partition('.')[2]} shares with programs.")
                module.__dict__.update(__path__=[], sources=(), public_absent=_Hints(module))
                sys.modules[full] = module
                parent.__dict__[part] = module
            parent = sys.modules[full]
        sources = tuple("globalstep" + entry.removeprefix("gs") for entry in table[path].split())
        parent.__dict__["sources"] = sources
    for path, hint in (absent or {}).items():
        parent_path, _, name = path.rpartition(".")
        hints = sys.modules[f"{root}.{parent_path}" if parent_path else root].__dict__["public_absent"]
        hints.own[name] = hint
    return sorted({path.partition(".")[0] for path in table})
