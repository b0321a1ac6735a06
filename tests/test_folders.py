"""Every folder is in the package, tests lie beside what they test, and names of classes are their own."""

import ast
import tomllib
from pathlib import Path

from product_code import ROOT, modules_of, parsed, product_modules, relative

_CLIENTS = {"cluster", "client", "session", "sess"}
#: Parameters for a client or a session without a type: almost all are TensorFlow's, which programs override or give
#: sessions of their own to. File -> how many there are; there may be fewer.
UNTYPED_CLIENTS = {
    "tf1/sessions/saver.py": 5,
    "tf1/exporting/saved_model.py": 3,
    "tf1/sessions/supervisor.py": 3,
    "src/globalstep/cluster/cluster.py": 1,
    "tf1/graph/graph.py": 4,
    "tf1/graph/sparse_tensor.py": 1,
    "tf1/variables/training_util.py": 1,
    "tf1/inputs/queue_runner.py": 2,
    "chief/hooks/session_run_hook.py": 3,
    "tf1/optimizers/sync_replicas_optimizer.py": 2,
}


def test_every_folder_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in product_modules()}
    names = {".".join(("globalstep", *(f.parts[2:] if f.parts[0] == "src" else f.parts))) for f in folders}
    assert set(listed) - {"globalstep.proto"} == names


def test_tests_lie_where_what_they_test_lies():
    """Each folder of tests is one of the product's, or one of these, which test the whole."""
    whole = {
        *("benchmarks", "docs", "fuzz", "golden", "integration", "scripts", "simulation", "soak", "spec", "support"),
        *("compatibility", "transcripts"),
    }
    product = {path.parent.relative_to(ROOT) for path in product_modules()}
    rooms = {Path(*f.parts[2:]) if f.parts[0] == "src" else f for f in product}
    folders = {path.parent.relative_to(ROOT / "tests") for path in modules_of("tests")}
    assert not {str(folder) for folder in folders if folder not in rooms and folder.parts[0] not in whole}


def test_classes_have_names_of_their_own():
    """One name, one thing: what a reader finds by its name is the only one of it.

    But for events, which are named after what they ask for: `events.Push` asks a shard to do a push; and for what has
    the name of its like in PyTorch, or in slim.
    """
    found = {}
    others = ("shard/events.py", "torch_optimizers.py", "torch_embedding.py", "jax_embedding.py", "slim/datasets.py")
    for path in product_modules():
        if str(path).endswith(others):
            continue
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(relative(path))
    shared = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert not shared


def test_what_takes_a_client_or_a_session_says_its_type():
    """So that the type checker sees the chief. Programs pass what they like."""
    found = {}
    for path in product_modules():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                untyped = [one for one in given if one.arg in _CLIENTS and _is_any(one.annotation)]
                if untyped:
                    found[relative(path)] = found.get(relative(path), 0) + len(untyped)
    assert not {name: n for name, n in found.items() if n > UNTYPED_CLIENTS.get(name, 0)}
    assert not {name: n for name, n in UNTYPED_CLIENTS.items() if found.get(name, 0) < n}, "there are fewer now"


def _is_any(annotation):
    return annotation is None or ast.unparse(annotation) in ("Any", "object")
