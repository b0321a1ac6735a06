"""Prints how large and how deep the code of a checkout is, and what one push goes through.

Usage: python scripts/structure.py [TREE ...]

For each checkout: lines of product code and of the PS, modules a folder, imports between the top-level folders and
those that go up, the longest class with its bases, functions with many parameters, `Any` in signatures; and for one
push, with the PS in this process and with 1 and 2 PS tasks over shared memory: Python calls on both sides, files, and
depth of the stack. What is run of a checkout is run by the Python of its .venv.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LAYERS = {"proto": 0, "src": 1, "ps": 2, "worker": 2, "chief": 3, "deploy": 4}
_GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
#: Modules that give names of all layers, and are no layer themselves.
_NAMESPACES = {
    "__init__",
    "__main__",
    "contrib",
    "initializers",
    "layers",
    "metrics",
    "nn",
    "summary",
    "train",
    "python_io",
    "random",
}

#: Run in a checkout: trains one Variable over 0, 1 or 2 PS tasks, and counts what a push calls, on all threads.
_PUSH = """
import collections, json, os, sys, threading

tasks = int(sys.argv[1])
counting, calls, files, depths = False, 0, set(), [0]

def globalsteps(frame):
    name = frame.f_code.co_filename
    return "globalstep" in name and "site-packages" not in name and not name.startswith("<")

def note(frame, event, argument):
    global calls
    if counting and event == "call" and globalsteps(frame):
        calls += 1
        files.add(os.path.realpath(frame.f_code.co_filename))
        depth = 0
        while frame is not None:
            depth += globalsteps(frame)
            frame = frame.f_back
        depths.append(depth)

threading.setprofile(note)
import numpy as np
import globalstep as gs

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
found = []
with gs.Session(servers[0].target if tasks else "") as session:
    session.run(gs.global_variables_initializer())
    for _ in range(20):
        session.run(train)
    sys.setprofile(note)
    for _ in range(15):
        counting, calls, files, depths = True, 0, set(), [0]
        session.run(train)
        counting = False
        found.append((calls, len(files), max(depths)))
    sys.setprofile(None)
print(json.dumps(sorted(found)[len(found) // 2]), flush=True)
os._exit(0)
"""


def _sources(tree: Path) -> Iterator[tuple[str, Path]]:
    for layer in _LAYERS:
        for path in sorted((tree / layer).rglob("*.py")):
            if not _GENERATED.search(path.name) and "egg-info" not in str(path):
                yield layer, path


def _imports(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _layer_of(module: str) -> str | None:
    head, _, rest = module.partition(".")
    if head != "globalstep":
        return None
    first = rest.partition(".")[0]
    return first if first in _LAYERS else "src"


def static(tree: Path) -> dict[str, object]:
    """Count what can be read off the text of a checkout."""
    lines: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    edges = upward = many = anys = 0
    classes: dict[tuple[str, str], tuple[int, list[tuple[str, str]]]] = {}
    for layer, path in _sources(tree):
        text = path.read_text()
        lines[layer] += text.count("\n")
        folders[str(path.parent.relative_to(tree))] += path.name != "__init__.py"
        namespace = path.parent == tree / "src/globalstep" and path.stem in _NAMESPACES
        for module in _imports(text):
            other = _layer_of(module)
            if other is not None and other != layer and not namespace:
                edges += 1
                upward += _LAYERS[other] > _LAYERS[layer]
        parsed = ast.parse(text)
        name = str(path.relative_to(tree).with_suffix("")).removeprefix("src/globalstep/").replace("/", ".")
        known = {
            alias.asname or alias.name: ((node.module or "").removeprefix("globalstep."), alias.name)
            for node in ast.walk(parsed)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(parsed):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                many += len([one for one in given if one.arg not in ("self", "cls")]) > 6
                notes = [one.annotation for one in given] + [node.returns]
                anys += sum("Any" in ast.unparse(note) for note in notes if note is not None)
            elif isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                own = (node.end_lineno or node.lineno) - node.lineno + 1
                classes[name, node.name] = own, [known.get(base, (name, base)) for base in bases]

    def length(key: tuple[str, str], seen: set[tuple[str, str]]) -> int:
        if key not in classes or key in seen:
            return 0
        seen.add(key)
        own, bases = classes[key]
        return own + sum(length(base, seen) for base in bases)

    longest = max(classes, key=lambda key: length(key, set()))
    fullest = max((folder for folder in folders if not folder.endswith(("ops", "rules"))), key=folders.__getitem__)
    return {
        "lines of product Python": sum(lines.values()),
        "lines of ps/": lines["ps"],
        "folders": len(folders),
        "most modules in a folder": f"{folders[fullest]} ({fullest})",
        "imports between top-level folders": edges,
        "of them upwards": upward,
        "longest class with its bases": f"{length(longest, set())} ({longest[1]})",
        "functions with more than 6 parameters": many,
        "parameters and results that are Any": anys,
    }


def of_a_push(tree: Path) -> dict[str, object]:
    """Count what a push goes through in a checkout whose .venv has it installed."""
    python = tree / ".venv" / "bin" / "python"
    found: dict[str, object] = {}
    for tasks, name in ((0, "in process"), (1, "1 PS, shared memory"), (2, "2 PS, shared memory")):
        done = subprocess.run([python, "-c", _PUSH, str(tasks)], capture_output=True, text=True, check=False)
        if done.returncode:
            found[f"push {name}"] = f"not measured: {done.stderr.strip().splitlines()[-1:]}"
            continue
        calls, files, depth = json.loads(done.stdout.splitlines()[-1])
        found[f"push {name}: calls, files, depth"] = f"{calls}, {files}, {depth}"
    return found


def main() -> int:
    """Print a table: a line for each figure, a column for each checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT], metavar="TREE", help="checkouts (this one)")
    columns = [{**static(tree), **of_a_push(tree)} for tree in parser.parse_args().trees]
    for name in columns[0]:
        print(f"{name:46}", *(f"{column.get(name, '-')!s:32}" for column in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
