"""How a face works: its names come from a table, and a module is loaded when one of its names is used.

So `import globalstep` costs little, and a PS process never loads the code of a worker (PEP 562).

Floor: shared. Imports nothing of globalstep by itself.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Face", "face", "namespace"]


class Face(types.ModuleType):
    """A module whose public names live in other modules.

    Attributes:
        face_names: Public name -> (module, attribute); attribute "" for the module itself.
        face_absent: Name of TensorFlow's that is not here -> what to use instead.
    """

    face_names: dict[str, tuple[str, str]]
    face_absent: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("face_names", ()):
            module_name, attribute = self.face_names[name]
            module = importlib.import_module(module_name)
            value = getattr(module, attribute) if attribute else module
            self.__dict__[name] = value
            return value
        hint = self.__dict__.get("face_absent", {}).get(name)
        text = f"module {self.__name__!r} has no attribute {name!r}"
        if hint:
            # Named by itself: else Python looks for a name that is spelled alike, and finds zeros for keras.
            raise AttributeError(f"{text}: {hint}", name=name, obj=None)
        raise AttributeError(text)

    def __setattr__(self, name: str, value: object) -> None:
        # Importing globalstep.device binds the module here; gs.device is to stay the function.
        if isinstance(value, types.ModuleType) and self.face_names.get(name, ("", ""))[1]:
            return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.face_names})


def face(
    module_name: str,
    names: Mapping[str, Sequence[str] | str],
    modules: Sequence[str] = (),
    absent: Mapping[str, str] | None = None,
) -> list[str]:
    """Make the module that calls this a face.

    Args:
        module_name: Its `__name__`.
        names: Module -> its names, separated by spaces or in a sequence; "new=old" gives `old` as `new`.
        modules: Names of modules of globalstep that are reached through the face.
        absent: Names of TensorFlow's that are not here -> what to use instead.

    Returns:
        The public names, for `__all__`.
    """
    module = sys.modules[module_name]
    table = {name: (f"globalstep.{name}", "") for name in modules}
    for source, entries in names.items():
        for entry in entries.split() if isinstance(entries, str) else entries:
            name, _, attribute = entry.partition("=")
            table[name] = (source, attribute or name)
    module.__dict__["face_names"] = table
    module.__dict__["face_absent"] = absent or {}
    module.__class__ = Face
    return sorted(table)


def namespace(
    module_name: str,
    names: Mapping[str, Sequence[str] | str],
    absent: Mapping[str, str] | None = None,
) -> types.ModuleType:
    """Make a face that has no file of its own, for example `globalstep.contrib.framework`.

    Args:
        module_name: The full name, under which it can be imported from then on.
        names: See face.
        absent: See face.

    Returns:
        The module.
    """
    module = types.ModuleType(module_name, f"Names of {module_name}, as TensorFlow has them.")
    sys.modules[module_name] = module
    module.__dict__["__all__"] = face(module_name, names, absent=absent)
    return module
