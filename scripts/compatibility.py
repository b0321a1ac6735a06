"""Prints the tables that docs/conf.py adds to docs/compatibility.md: the names that public programs use, and all there.

tests/compatibility/names.json holds what was read: the programs, and of each the names of TensorFlow that it
uses.

Usage: python scripts/compatibility.py
"""

from __future__ import annotations

import collections
import importlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import globalstep as gs
from globalstep.lazy import Namespace
from globalstep.tf1 import absent
from globalstep.tf1.module_paths import ModulePath

ROOT = Path(__file__).resolve().parents[1]
NAMES = ROOT / "tests" / "compatibility" / "names.json"
PAGE = ROOT / "docs" / "compatibility.md"
#: Modules whose public names are listed, as a program spells them.
MODULES = (
    "",
    "app",
    "compat",
    "compat.v1",
    "contrib.crf",
    "contrib.data",
    "contrib.distributions",
    "contrib.framework",
    "contrib.framework.nest",
    "contrib.estimator",
    "contrib.feature_column",
    "contrib.layers",
    "contrib.legacy_seq2seq",
    "contrib.lookup",
    "contrib.losses",
    "contrib.metrics",
    "contrib.nn",
    "contrib.opt",
    "contrib.predictor",
    "contrib.rnn",
    "contrib.seq2seq",
    "contrib.slim",
    "contrib.slim.learning",
    "contrib.tensorboard.plugins.projector",
    "contrib.training",
    "data",
    "data.experimental",
    "distributions",
    "errors",
    "estimator",
    "estimator.experimental",
    "estimator.export",
    "estimator.inputs",
    "feature_column",
    "flags",
    "gfile",
    "image",
    "initializers",
    "layers",
    "logging",
    "lookup",
    "losses",
    "debugging",
    "distribute",
    "io",
    "io.gfile",
    "linalg",
    "math",
    "nest",
    "queue",
    "metrics",
    "nn",
    "nn.rnn_cell",
    "python_io",
    "random",
    "sparse",
    "strings",
    "summary",
    "test",
    "train",
    "train.queue_runner",
)
ABSENT_FROM = {
    "": absent.ABSENT,
    "contrib": absent.ABSENT_IN_CONTRIB,
    "data": absent.ABSENT_IN_DATA,
    "contrib.framework": absent.ABSENT_IN_FRAMEWORK,
    "contrib.layers": gs.contrib.layers.public_absent,
    "contrib.learn": absent.ABSENT_IN_LEARN,
    "contrib.lookup": gs.contrib.lookup.public_absent,
    "contrib.rnn": gs.contrib.rnn.public_absent,
    "contrib.seq2seq": gs.contrib.seq2seq.public_absent,
    "contrib.slim": absent.ABSENT_IN_SLIM,
    "image": absent.ABSENT_IN_IMAGE,
    "lookup": gs.lookup.public_absent,
    "nn": absent.ABSENT_IN_NN,
    "python": absent.ABSENT_IN_PYTHON,
    "sparse": gs.sparse.public_absent,
    "strings": gs.strings.public_absent,
    "test": absent.ABSENT_IN_TEST,
    "train": absent.ABSENT_IN_TRAIN,
}


def programs() -> list[dict[str, Any]]:
    """Give the programs that were read: repository, path and names."""
    programs: list[dict[str, Any]] = json.loads(NAMES.read_text())["programs"]
    return programs


def counts() -> dict[str, int]:
    """Give each name and by how many programs it is used, the most used first."""
    used = collections.Counter(name for program in programs() for name in set(program["names"]))
    return dict(sorted(used.items(), key=lambda item: (-item[1], item[0])))


def problem(name: str) -> str:
    """Say why a name does not work; "" if it does.

    Args:
        name: As a program spells it after `tf.`, e.g. "train.Supervisor.should_stop".
    """
    value: Any = gs
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            return "" if inspect.isclass(value) and _is_set_by_init(value, part) else str(error)
    return ""


def _is_set_by_init(kind: type, attribute: str) -> bool:
    made = kind.__dict__.get("__init__")
    return inspect.isfunction(made) and f"self.{attribute} =" in inspect.getsource(made)


def share() -> tuple[float, float]:
    """Give how much works: of all uses of a name by a program, and of all names."""
    used = counts()
    working = {name: count for name, count in used.items() if not problem(name)}
    return sum(working.values()) / sum(used.values()), len(working) / len(used)


def hint(name: str) -> str:
    """Give what the AttributeError of an absent name says to use instead."""
    return problem(name).partition(": ")[2]


def tables() -> str:
    """Give the Markdown that follows what docs/compatibility.md says by hand."""
    parts = (_shares(), _used(), _without_effect(), _absent(), _present(), _paths(), _read())
    return "\n".join(line for part in parts for line in part)


def _shares() -> Iterator[str]:
    by_use, by_name = share()
    yield "### How much works\n"
    yield f"- {len(programs())} programs were read; they use {len(counts())} names."
    yield f"- {by_use:.1%} of the uses work, counting each name once for each program that has it."
    yield f"- {by_name:.1%} of the names work.\n"


def _used() -> Iterator[str]:
    yield "### The names that the programs use\n"
    yield from _table(("name", "programs", "here"), ((f"`{n}`", c, _state(n)) for n, c in counts().items()))


def _state(name: str) -> str:
    if problem(name):
        return f"absent: {hint(name)}"
    if name.split(".")[0] in absent.WITHOUT_EFFECT:
        return "accepted without effect"
    return "supported"


def _without_effect() -> Iterator[str]:
    yield "### Accepted without effect\n"
    yield 'Arguments that a docstring calls "Accepted as in TensorFlow" have none either.\n'
    yield from _table(("name", "what happens"), ((f"`{n}`", text) for n, text in absent.WITHOUT_EFFECT.items()))


def _absent() -> Iterator[str]:
    yield "### Absent, and what to use instead\n"
    yield "The `AttributeError` says the same. What is in no table of this page is absent without a hint.\n"
    rows = [
        (f"`{_joined(module, name)}`", text)
        for module, hints in ABSENT_FROM.items()
        for name, text in sorted(hints.items())
    ]
    yield from _table(("name", "instead"), rows)


def _present() -> Iterator[str]:
    yield "### Everything there is\n"
    for module in MODULES:
        namespace = importlib.import_module("globalstep" + (f".{module}" if module else ""))
        if namespace is gs and module:
            yield f"**`gs.{module}`**: all of `gs`.\n"
            continue
        public = sorted(name for name in namespace.__all__ if not isinstance(getattr(namespace, name), Namespace))
        yield f"**`gs{'.' + module if module else ''}`**: {', '.join(f'`{name}`' for name in public)}\n"


def _paths() -> Iterator[str]:
    importlib.import_module("globalstep.contrib")
    for name in ("core", "examples", "python"):
        importlib.import_module(f"globalstep.{name}")
    paths = [(name, module) for name, module in sys.modules.items() if isinstance(module, ModulePath)]
    yield "### Paths of TensorFlow's own modules\n"
    yield "Programs import from them what has a public name; a name that is not here says so.\n"
    yield f"{', '.join(f'`{name}`' for name, module in sorted(paths) if module.sources)}\n"


def _read() -> Iterator[str]:
    yield "### The programs that were read\n"
    for program in programs():
        yield f"- [{program['repository']}](https://github.com/{program['repository']}), {program['path']}"
    yield ""


def _joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    titles = list(head)
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield ""


if __name__ == "__main__":
    print(tables())
