"""Lazy namespaces: a stub says where the names are, and a module is loaded when one of its names is used.

So `import globalstep` costs little, and a PS process never loads the code of a worker (PEP 562). Type checkers and
editors read the same stub, the .pyi beside the module: a name is written down once.

Layer: shared. Imports nothing of globalstep by itself.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

#: A line of a stub: "from module import attribute as name", or "import module as name".
_LINE = re.compile(r"^(?:from (\S+) )?import (\S+) as (\w+)$", re.MULTILINE)


class Namespace(types.ModuleType):
    """A module whose public names live in other modules.

    Attributes:
        public_names: Public name -> (module, attribute); attribute "" for the module itself.
        public_absent: Name of TensorFlow's that is not here -> what to use instead.
    """

    public_names: dict[str, tuple[str, str]]
    public_absent: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [*sorted(all_names(self)), *(own for own in ("VERSION", "__version__") if own in self.__dict__)]
        if name not in self.__dict__.get("public_names", ()) and not name.startswith("__"):
            all_names(self)
        if name in self.__dict__.get("public_names", ()):
            module_name, attribute = self.public_names[name]
            module = importlib.import_module(module_name)
            value = getattr(module, attribute) if attribute else module
            self.__dict__[name] = value
            return value
        hint = self.__dict__.get("public_absent", {}).get(name)
        text = f"module {self.__name__!r} has no attribute {name!r}"
        if hint:
            # Named by itself: else Python looks for a name that is spelled alike, and finds zeros for keras.
            raise AttributeError(f"{text}: {hint}", name=name, obj=None)
        raise AttributeError(text)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *all_names(self)})


def all_names(module: types.ModuleType) -> dict[str, tuple[str, str]]:
    """Return a namespace's `public_names`, with those of its library, which is loaded if it was not."""
    library = module.__dict__.pop("public_library", "")
    if library:
        loaded = importlib.import_module(library)
        module.public_names.update(loaded.NAMES)
        module.__dict__["public_absent"] = loaded.ABSENT
        # Programs for TensorFlow import what is absent, too: `from globalstep.keras import layers`.
        sys.meta_path.append(AbsentImports)
    names: dict[str, tuple[str, str]] = module.public_names
    return names


class AbsentImports:
    """Says of an import of what is not here what to use instead, as using the name does.

    `from globalstep.keras import layers` imports a module, and asks no module for an attribute. Python asks this finder
    when nobody else has found the module.
    """

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Refuse a name that has a hint; leave all others to Python.

        Raises:
            ModuleNotFoundError: With the hint.
        """
        parent, _, name = fullname.rpartition(".")
        if not parent.startswith("globalstep"):
            return
        hint = getattr(sys.modules.get(parent), "public_absent", {}).get(name)
        if hint:
            # Without the module's name: Python takes one that bears it, after `from a import b`, for its own business.
            raise ModuleNotFoundError(f"No module named {fullname!r}: {hint}")


def stub_names(module_name: str) -> dict[str, tuple[str, str]]:
    """Return the names in the stub of a module, which is being imported; as `Namespace.public_names`."""
    spec: Any = sys.modules[module_name].__spec__
    stub = spec.loader.get_data(f"{os.path.splitext(spec.origin)[0]}.pyi").decode()
    return {name: (source, what) if source else (what, "") for source, what, name in _LINE.findall(stub)}


def namespace(module_name: str, absent: Mapping[str, str] | None = None, library: str = "") -> list[str]:
    """Make the module that calls this a namespace of the names in its stub.

    Args:
        module_name: Its `__name__`.
        absent: Names of TensorFlow's that are not here -> what to use instead.
        library: A module with further NAMES and ABSENT, which is loaded when a name is none of these.

    Returns:
        The public names, for `__all__`.
    """
    if library:
        sys.modules[module_name].__dict__["public_library"] = library
    return _made(module_name, stub_names(module_name), absent)


def _made(module_name: str, table: dict[str, tuple[str, str]], absent: Mapping[str, str] | None) -> list[str]:
    module = sys.modules[module_name]
    module.__dict__.update(public_names=table, public_absent=absent or {})
    module.__class__ = Namespace
    # A package, to Python: so that it asks AbsentImports for what is not in it.
    module.__dict__.setdefault("__path__", [])
    return sorted(table)


def nested_namespace(
    module_name: str,
    names: Mapping[str, Sequence[str] | str],
    absent: Mapping[str, str] | None = None,
    like: str = "",
) -> types.ModuleType:
    """Make a namespace that has no file of its own, for example `globalstep.contrib.framework`.

    Args:
        module_name: The full name, under which it can be imported from then on.
        names: Module -> its names, separated by spaces or in a sequence; "new=old" gives `old` as `new`.
        absent: See namespace.
        like: Another namespace, whose names are in this one too.
    """
    module = types.ModuleType(module_name, f"Names of {module_name}, as TensorFlow has them.")
    sys.modules[module_name] = module
    table = dict(all_names(importlib.import_module(like))) if like else {}
    for source, entries in names.items():
        for entry in entries.split() if isinstance(entries, str) else entries:
            name, _, attribute = entry.partition("=")
            table[name] = (source, attribute or name)
    module.__dict__["__all__"] = _made(module_name, table, absent)
    return module
