"""Print how large the house is, how deep a push and a step of training go, and what `gs.fit` loads.

Usage: python3 scripts/structure.py [--check | --lower] [--imports] [TREE ...]

A line for each figure: a column for each checkout (this one where none is named), then the ceiling and the budget. The
counts of text need nothing but Python; what is measured runs in the checkout's .venv, or where there is none with this
Python, if globalstep is installed for it. `--check` fails where a figure of this checkout is above its ceiling in
scripts/ceilings.json; `--lower` lowers the ceilings to the figures. Nothing raises them but an edit of that file.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = ROOT / "scripts" / "ceilings.json"
_LAYERS = {"proto": 0, "src": 1, "ps": 2, "worker": 2, "chief": 3, "deploy": 4, "tf1": 5}
_GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
_LOCK = re.compile(r"\bthreading\.(Lock|RLock|Condition)[()]")
#: What is aimed at; a figure without an entry has none.
BUDGETS = {
    "lines without tf1/": 46_000,
    "lines of tf1/": 45_000,
    "messages in proto": 75,
    "locks in ps/ and worker/": 35,
    "lines of tests": 60_000,
    "words of docs": 35_000,
    "imports of a higher layer": 0,
    "lines that gs.fit loads": 26_000,
    "modules that gs.fit loads": 140,
    "modules of tf1/ that gs.fit loads": 0,
    "frames of a fit step": 16,
    "frames of session.run": 18,
    "frames of client.push": 11,
    "files of a push in process": 30,
    "calls of a push in process": 130,
    "files of a push over 1 PS": 38,
    "calls of a push over 1 PS": 200,
    "files of a push over 2 PS": 42,
    "calls of a push over 2 PS": 380,
}

#: A push over PS tasks has threads, which wake in another order each time: so much more calls are none more.
_SPREAD = 1.05

#: Run in a checkout. Prints the figures of one measurement: what `fit` loads, or what one of many steps goes through.
_MEASURE = '''
import json, os, sys, threading
mode, tasks = sys.argv[1], int(sys.argv[2])
counting, calls, files, deepest = False, 0, set(), 0

def ours(frame):
    return frame.f_globals.get("__name__", "").startswith("globalstep") and frame.f_code.co_filename[0] != "<"

def note(frame, event, argument):
    global calls, deepest
    if counting and event == "call" and ours(frame):
        calls += 1
        files.add(frame.f_code.co_filename)
        depth, at = 0, frame
        while at is not None:
            depth, at = depth + ours(at), at.f_back
        deepest = max(deepest, depth)

threading.setprofile(note)
import numpy as np
import globalstep as gs

def loss_fn(weights, inputs, labels):
    error = inputs @ weights - labels
    return np.mean(error**2), 2 * inputs.T @ error / len(inputs)

def measure(step):
    """Count one step at a time once twenty have been made; print the least, which no other thread has added to."""
    global counting, calls, files, deepest
    figures = []
    for number in range(35):
        if number == 20:
            sys.setprofile(note)
        counting, calls, files, deepest = number >= 20, 0, set(), 0
        step()
        counting = False
        if number >= 20:
            figures.append((calls, len(files), deepest))
    sys.setprofile(None)
    print(json.dumps(min(figures)), flush=True)
    os._exit(0)

if mode == "loaded":
    x = np.eye(3, dtype=np.float32)
    gs.fit(np.zeros(3, np.float32), loss_fn, [(x, x @ [1, -2, 3])], optimizer=gs.optim.SGD(0.5), steps=50)
    loaded = {name: module.__file__ for name, module in list(sys.modules.items())
              if name.startswith("globalstep") and "_pb2" not in name and getattr(module, "__file__", None)}
    lines = sum(open(file).read().count("\\n") for file in loaded.values())
    print(json.dumps([lines, len(loaded), sum(name.startswith("globalstep.tf1") for name in loaded)]), flush=True)
    os._exit(0)
if mode == "fit":
    x = np.random.default_rng(0).normal(size=(640, 3)).astype(np.float32)
    y = x @ np.array([1, -2, 3], np.float32)
    data = [(x[at : at + 16], y[at : at + 16]) for at in range(0, 640, 16)]
    with gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=gs.optim.SGD(0.1), steps=60) as trainer:
        batches = iter(trainer.batches(lambda: data))
        measure(lambda: trainer.step(next(batches)))
if mode == "push":
    from globalstep.ps.local import LocalPS
    from globalstep.wire.declarations import *
    from globalstep.wire.expressions import constant
    from globalstep.worker.client.client import ClusterClient
    client = ClusterClient(LocalPS(1).transports())
    client.begin(open=True)
    decls = [VariableDecl("w", "float32", (1000,)), VariableDecl("step", "int64", (), is_step=True)]
    client.declare(decls, [OptimizerDecl("o", "gradient_descent", {"learning_rate": constant(0.1)}, {"w": ()})])
    client.push(Push([Op(OpKind.ASSIGN, decl.name, fill=0.0) for decl in decls]))
    gradient, layout = np.ones(1000, np.float32), object()
    measure(lambda: client.push(Push(
        [Op(OpKind.APPLY, "w", gradient, optimizer="o")], [Increment("step")], [OptimizerUse("o")], [Read("w")],
        layout=layout,
    )))
target = ""
if tasks:
    import socket
    free = [socket.create_server(("localhost", 0)) for _ in range(tasks)]
    addresses = [f"localhost:{one.getsockname()[1]}" for one in free]
    for one in free:
        one.close()
    cluster = gs.train.ClusterSpec({"ps": addresses})
    servers = [gs.train.Server(cluster, job_name="ps", task_index=index) for index in range(tasks)]
    target = "grpc://" + ",".join(addresses)
step = gs.train.get_or_create_global_step()
values = [gs.Variable(np.zeros(1000, np.float32), name=f"v{index}") for index in range(2)]
loss = gs.add_n([gs.reduce_sum(gs.square(value - 1.0)) for value in values])
train = gs.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
# A push over 2 PS is one of a model that is spread; a checkout from before there was a bound spreads all.
policy = gs.RunPolicy(**({"spread_above": 0} if hasattr(gs.RunPolicy, "spread_above") else {}))
with gs.Session(servers[0].target if tasks else "", config=gs.ConfigProto(run_policy=policy)) as session:
    session.run(gs.global_variables_initializer())
    measure(lambda: session.run(train))
'''
#: Mode and PS tasks of a measurement -> the names of its figures, None for one that is not kept.
_MEASUREMENTS: Mapping[tuple[str, int], Sequence[str | None]] = {
    ("loaded", 0): ("lines that gs.fit loads", "modules that gs.fit loads", "modules of tf1/ that gs.fit loads"),
    ("fit", 0): (None, None, "frames of a fit step"),
    ("run", 0): ("calls of a push in process", "files of a push in process", "frames of session.run"),
    ("push", 0): (None, None, "frames of client.push"),
    ("run", 1): ("calls of a push over 1 PS", "files of a push over 1 PS", None),
    ("run", 2): ("calls of a push over 2 PS", "files of a push over 2 PS", None),
}


def _modules(tree: Path) -> Iterator[tuple[str, Path]]:
    """Yield the product's modules, each with its top-level folder; generated ones are left out."""
    for folder in _LAYERS:
        for path in sorted((tree / folder).rglob("*.py")):
            if not _GENERATED.search(path.name) and "egg-info" not in str(path):
                yield folder, path


def _lines(paths: Iterator[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


@functools.cache
def _path_of(tree: Path, module: str) -> Path | None:
    """Return the file of a module of globalstep; None where there is none of that name."""
    parts = module.split(".")
    folder = tree if len(parts) > 1 and parts[1] in _LAYERS else tree / "src" / "globalstep"
    path = folder.joinpath(*parts[1:])
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((one for one in candidates if one.exists()), None)


def imports(tree: Path, path: Path) -> set[str]:
    """Return the modules of globalstep that a module imports; one that is named in a string is imported, too.

    Args:
        tree: The checkout.
        path: The module.
    """
    parsed = ast.parse(path.read_text())
    texts = {
        id(node.body[0].value)
        for node in ast.walk(parsed)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    named: set[str] = set()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for deeper in (f"{node.module}.{alias.name}" for alias in node.names):
                named.add(deeper if _path_of(tree, deeper) is not None else node.module or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            named.add(node.value.rstrip("."))
    return {name for name in named if name.startswith("globalstep.") and _path_of(tree, name) is not None}


@functools.cache
def upward(tree: Path) -> list[str]:
    """Return the imports of a higher layer, or of the other role of the same one, as "importer -> imported".

    A namespace, which lies in src/globalstep/ itself, may name everything.
    """
    face = tree / "src" / "globalstep"
    namespaces = {*face.glob("*.py"), *(face / "as_tensorflow").rglob("*.py")}
    lines = []
    for folder, path in _modules(tree):
        if path in namespaces:
            continue
        for module in sorted(imports(tree, path)):
            other = module.split(".")[1]
            other = other if other in _LAYERS else "src"
            target = _path_of(tree, module)
            assert target is not None
            if target in namespaces:
                continue
            if other != folder and _LAYERS[other] >= _LAYERS[folder]:
                lines.append(f"{path.relative_to(tree)} -> {module}")
    return lines


def counted(tree: Path) -> dict[str, int]:
    """Count what can be read off the text of a checkout."""
    modules = list(_modules(tree))
    proto = "".join(path.read_text() for path in sorted((tree / "proto").glob("*.proto")))
    locks = (path.read_text() for folder, path in modules if folder in ("ps", "worker"))
    docs = (tree / "docs").rglob("*.md")
    return {
        "lines without tf1/": _lines(path for folder, path in modules if folder != "tf1"),
        "lines of tf1/": _lines(path for folder, path in modules if folder == "tf1"),
        "messages in proto": len(re.findall(r"^\s*message \w+ \{", proto, re.MULTILINE)),
        "locks in ps/ and worker/": sum(len(_LOCK.findall(text)) for text in locks),
        "lines of tests": _lines((tree / "tests").rglob("*.py")),
        "words of docs": sum(len(path.read_text().split()) for path in docs),
        "imports of a higher layer": len(upward(tree)),
    }


def measured(tree: Path) -> dict[str, int]:
    """Measure what runs in a checkout; empty where nothing can."""
    own = tree / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    results: dict[str, int] = {}
    for (mode, tasks), names in _MEASUREMENTS.items():
        command = [python, "-c", _MEASURE, mode, str(tasks)]
        # The first run compiles kernels where this machine's cache has none, and loads what compiles them.
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tree)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            print(f"Not measured with {python}: {mode} over {tasks} PS: {reason}", file=sys.stderr)
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
        results |= {name: figure for name, figure in zip(names, figures, strict=True) if name is not None}
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; returns 1 where a figure is above its ceiling and `--check` is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT], metavar="TREE", help="checkouts (this one)")
    parser.add_argument("--check", action="store_true", help="fail where a figure is above its ceiling")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings to the figures")
    parser.add_argument("--imports", action="store_true", help="name the imports of a higher layer as well")
    parser.add_argument("--text-only", action="store_true", help="measure nothing that runs")
    parser.add_argument("--ceilings", type=Path, default=CEILINGS, help="the file of the ceilings")
    args = parser.parse_args(argv)
    ceilings: dict[str, int] = json.loads(args.ceilings.read_text())
    trees = [tree.resolve() for tree in args.trees]
    columns = [counted(tree) | ({} if args.text_only else measured(tree)) for tree in trees]
    headings = [tree.name[:12] for tree in trees]
    print(f"{'':36}", *(f"{heading:>12}" for heading in (*headings, "ceiling", "budget")))
    for name, budget in BUDGETS.items():
        figures = [*(column.get(name, "-") for column in columns), ceilings.get(name, "-"), budget]
        print(f"{name:36}", *(f"{figure:>12}" for figure in figures))
    if args.imports:
        print(*upward(trees[0]), sep="\n")
    above = {
        name: figure
        for name, figure in columns[0].items()
        if figure > ceilings.get(name, figure) * (_SPREAD if " of a push over " in name else 1.0)
    }
    if args.lower:
        lowered = {name: min(ceilings.get(name, figure), figure) for name, figure in columns[0].items()}
        args.ceilings.write_text(json.dumps(ceilings | lowered, indent=2) + "\n")
    if args.check:
        for name, figure in above.items():
            print(
                f"{name}: {figure}, and the ceiling is {ceilings[name]}. Take something away; or say in the commit why "
                f"the ceiling in {args.ceilings.name} is raised.",
                file=sys.stderr,
            )
        return int(bool(above))
    return 0


if __name__ == "__main__":
    sys.exit(main())
