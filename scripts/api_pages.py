"""Writes the pages of the API reference, one for each public module, from the tables of the namespaces.

The pages are made when the site is built (docs/conf.py) and are not kept: what they say is in the docstrings.

Usage: python scripts/api_pages.py FOLDER
"""

from __future__ import annotations

import argparse
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import globalstep as gs
from globalstep.lazy import Namespace, all_names

#: The public modules, as a program spells them after `gs.`; "" is `gs` itself. A name that several have is
#: described in the first.
MODULES = (
    "",
    "optim",
    "train",
    "nn",
    "nn.rnn_cell",
    "layers",
    "losses",
    "distributions",
    "estimator",
    "feature_column",
    "metrics",
    "initializers",
    "summary",
    "errors",
    "app",
    "flags",
    "logging",
    "gfile",
    "image",
    "data",
    "data.experimental",
    "lookup",
    "sparse",
    "strings",
    "python_io",
    "debugging",
    "distribute",
    "io",
    "io.gfile",
    "keras.backend",
    "keras.layers",
    "keras.losses",
    "linalg",
    "math",
    "nest",
    "queue",
    "random",
    "test",
    "compat",
    "contrib.framework",
    "contrib.framework.nest",
    "contrib.layers",
    "contrib.legacy_seq2seq",
    "contrib.lookup",
    "contrib.losses",
    "contrib.distributions",
    "contrib.metrics",
    "contrib.opt",
    "contrib.rnn",
    "contrib.seq2seq",
    "contrib.slim",
    "contrib.slim.learning",
    "contrib.tensorboard.plugins.projector",
    "contrib.training",
    "train.queue_runner",
    "saved_model",
    "graph_util",
)


@dataclass(frozen=True)
class Name:
    """A public name.

    Attributes:
        path: As it is imported, such as "globalstep.train.Saver".
        source: The module that defines it.
        value: What it names.
        canonical: The path under which it is described; its own, unless an earlier page has the same thing.
    """

    path: str
    source: str
    value: Any
    canonical: str

    @property
    def short(self) -> str:
        """The name as a program spells it: "gs.train.Saver"."""
        return spelled(self.path)


def spelled(path: str) -> str:
    """Give the name as programs spell it, with "gs" for "globalstep"."""
    return "gs" + path.removeprefix("globalstep")


def module(name: str) -> types.ModuleType:
    """Give a public module by its name after `gs.`."""
    member: Any = gs
    for part in name.split(".") if name else ():
        member = getattr(member, part)
    assert isinstance(member, types.ModuleType)
    return member


def public_names() -> dict[str, list[Name]]:
    """Give the names of each public module, modules among them left out."""
    described: dict[int, str] = {}
    kept = []  # Whatever has been given an id must live as long as the table of ids.
    pages: dict[str, list[Name]] = {}
    for page in MODULES:
        namespace = module(page)
        sources = (
            {name: source for name, (source, attribute) in all_names(namespace).items() if attribute}
            if isinstance(namespace, Namespace)
            else dict.fromkeys(getattr(namespace, "__all__", ()), namespace.__name__)
        )
        names = []
        for name, source in sources.items():
            value = getattr(namespace, name)
            if isinstance(value, types.ModuleType):
                continue
            path = ".".join(part for part in ("globalstep", page, name) if part)
            # Numbers and strings are equal by chance; all else is described once.
            by_value = isinstance(value, (int, float, str))
            canonical = path if by_value else described.setdefault(id(value), path)
            kept.append(value)
            names.append(Name(path, source, value, canonical))
        pages[page] = names
    return pages


def page_name(page: str) -> str:
    """Give the file of a module's page, without suffix."""
    return ".".join(part for part in ("gs", page) if part)


def text(page: str, names: list[Name]) -> str:
    """Give the page of a module, in reStructuredText."""
    title = page_name(page)
    lines = [title, "=" * len(title), ""]
    lines += [(inspect.getdoc(module(page)) or "").partition("\n\n")[0], ""]
    if page == "":
        lines += [f"The public modules below it: {', '.join(f':doc:`{page_name(m)}`' for m in MODULES if m)}.", ""]
        lines += ["``gs.compat.v1`` has the same names.", ""]
    own = [name for name in names if name.canonical == name.path]
    sources = list(dict.fromkeys(name.source for name in own))
    for source in sources:
        if len(sources) > 1:
            heading = source.rpartition(".")[2].replace("_", " ").capitalize()
            lines += [heading, "-" * len(heading), ""]
        for name in own:
            if name.source == source:
                lines += [*_directive(name), ""]
    again = [name for name in names if name.canonical != name.path]
    if again:
        heading = "Other names of the same"
        lines += [heading, "-" * len(heading), "", ".. list-table::", "   :header-rows: 1", ""]
        lines += ["   * - name", "     - is"]
        for name in again:
            lines += [f"   * - ``{name.short}``", f"     - :py:obj:`{spelled(name.canonical)} <{name.canonical}>`"]
    return "\n".join(lines) + "\n"


def _directive(name: Name) -> Iterator[str]:
    value = name.value
    if inspect.isclass(value):
        if issubclass(value, BaseException):
            yield f".. autoexception:: {name.path}"
        elif hasattr(value, "DESCRIPTOR"):
            # A protobuf message: its fields are in the .proto that TensorBoard publishes.
            yield f".. py:class:: {name.path}"
            yield ""
            yield f"   The protobuf message ``{value.DESCRIPTOR.full_name}``. Fields: "
            yield "   " + ", ".join(f"``{field.name}``" for field in value.DESCRIPTOR.fields) + "."
        else:
            yield f".. autoclass:: {name.path}"
            yield "   :members:"
            yield "   :inherited-members: object, Exception, tuple, str, dict, list, int, Enum"
    elif callable(value) and not isinstance(value, gs.DType):
        yield f".. autofunction:: {name.path}"
    else:
        yield f".. py:data:: {name.path}"
        yield ""
        documented = inspect.getdoc(value) if not isinstance(value, (int, float, str)) else None
        yield f"   ``{value!r}``. " + ((documented or "").partition("\n")[0])


def write(folder: Path) -> list[str]:
    """Write all pages, and remove those of modules that are gone.

    Returns:
        Their names, in the order of the table of contents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pages = {page_name(page): text(page, names) for page, names in public_names().items()}
    for path in folder.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()
    for name, content in pages.items():
        path = folder / f"{name}.rst"
        # Sphinx reads anew what is newer.
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
    return list(pages)


def main() -> int:
    """Write the pages into the folder of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    print(*write(parser.parse_args().folder), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
