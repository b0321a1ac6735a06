"""How large a folder, a class and a signature may be, and that every folder is in the package."""

import ast
import tomllib
from pathlib import Path

from product_code import ROLES, ROOT, modules_of, parsed, product_modules, relative

import globalstep as gs

MAX_MODULES = 15
MAX_METHODS = 20
MAX_PARAMETERS = 6
#: Folders of many things of one kind, each of which is read by itself; and the public namespace.
COLLECTIONS = {"src/globalstep", "src/globalstep/ops", "ps/rules"}
#: Classes that are to be taken apart -> how many public methods they have; they may have fewer.
MORE_METHODS = {"Graph": 21, "LogFiles": 22, "Ledger": 24, "Pipeline": 24, "VariableStore": 21}
_CLIENTS = {"cluster", "client", "session", "sess"}
#: Parameters for a client or a session without a type: almost all are TensorFlow's, which programs override or give
#: sessions of their own to. File -> how many there are; there may be fewer.
UNTYPED_CLIENTS = {
    "chief/checkpoints/saver.py": 5,
    "chief/exports/saved_model.py": 3,
    "chief/supervisor.py": 3,
    "src/globalstep/cluster/cluster.py": 1,
    "src/globalstep/graph/graph.py": 4,
    "src/globalstep/graph/sparse_tensor.py": 1,
    "src/globalstep/variables/training_util.py": 1,
    "src/globalstep/variables/variables.py": 1,
    "worker/inputs/queue_runner.py": 2,
    "worker/session_run_hook.py": 3,
    "worker/sync_replicas_optimizer.py": 2,
}
#: Functions whose arguments are to become fewer -> how many they have; those that TensorFlow dictates are not here.
MORE_PARAMETERS = {
    "building.pairwise": 7,
    "checkpoint_save.save_snapshot": 8,
    "checkpoint_state.write_state": 9,
    "checks.Reader.__init__": 7,
    "client.ClusterClient.__init__": 9,
    "client.connect": 7,
    "executor.Executor.__init__": 7,
    "job._RayLauncher.__init__": 9,
    "ledger.Ledger.admit": 7,
    "job._actors": 7,
    "job.launch": 15,
    "measured_cluster.MeasuredCluster.run": 8,
    "measured_worker._MeasuredWorker.run": 8,
    "mutations.Mutation.__init__": 8,
    "named_variables._get": 11,
    "placement._splits": 7,
    "push_form.PushForm.__init__": 7,
    "queue_state.QueueState.__init__": 7,
    "reduction_ops._reduce": 7,
    "sampling_ops._sampled_logits": 11,
    "sampling_ops._sampler": 8,
    "saver.Saver._save": 7,
    "shard_file.write_shard_from": 7,
    "socket_transport.dial": 7,
    "socket_server.SocketServer.__init__": 8,
}


def test_a_folder_has_few_modules():
    counts = {}
    for path in modules_of("src/globalstep", *ROLES, "tests", "benchmarks", "examples", "scripts"):
        if path.name != "__init__.py":
            folder = relative(path.parent)
            counts[folder] = counts.get(folder, 0) + 1
    assert not {folder: n for folder, n in counts.items() if n > MAX_MODULES and folder not in COLLECTIONS}


def test_every_folder_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in product_modules()}
    names = {".".join(("globalstep", *(f.parts[2:] if f.parts[0] == "src" else f.parts))) for f in folders}
    assert set(listed) - {"globalstep.proto"} == names


def test_tests_lie_where_what_they_test_lies():
    """Each folder of tests is one of the product's, or one of these, which test the whole."""
    whole = {
        *("benchmarks", "docs", "fuzz", "golden", "integration", "scripts", "simulation", "soak", "support"),
        *("recorded", "compatibility"),
    }
    product = {path.parent.relative_to(ROOT) for path in product_modules()}
    rooms = {Path(*f.parts[2:]) if f.parts[0] == "src" else f for f in product}
    folders = {path.parent.relative_to(ROOT / "tests") for path in modules_of("tests")}
    assert not {str(folder) for folder in folders if folder not in rooms and folder.parts[0] not in whole}


def test_a_class_has_few_public_methods():
    found = {}
    for path in product_modules():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                # By name: an overload is no method more.
                names = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
                found[node.name] = len([name for name in names if not name.startswith("_")])
    many = {name: count for name, count in found.items() if count > MAX_METHODS}
    assert not {name: count for name, count in many.items() if count > MORE_METHODS.get(name, MAX_METHODS)}
    assert not set(MORE_METHODS) - set(many), "these have few now: take them off the list"


def test_classes_have_names_of_their_own():
    """One name, one thing: what a reader finds by its name is the only one of it.

    But for events, which are named after what they ask for: `events.Push` asks a shard to do a push; and for what has
    the name of its like in PyTorch.
    """
    found = {}
    for path in product_modules():
        if path.name in ("events.py", "torch_optimizers.py", "torch_embedding.py", "jax_embedding.py"):
            continue
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(relative(path))
    shared = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert not shared


def test_a_function_has_few_parameters():
    """But for those that TensorFlow has with as many, and kernels, which get plain numbers and arrays."""
    many = {}
    for path in product_modules():
        if path.parent.name == "rules":
            continue
        for name, count in _signatures(parsed(path), ""):
            if count > MAX_PARAMETERS and not _is_public(name):
                many[f"{path.stem}.{name}"] = count
    assert not {name: n for name, n in many.items() if n > MORE_PARAMETERS.get(name, MAX_PARAMETERS)}
    assert not set(MORE_PARAMETERS) - set(many), "these have few now: take them off the list"


def test_what_takes_a_client_or_a_session_says_its_type():
    """So that the type checker sees the chief: `worker/access.py` has the Protocols. Programs pass what they like."""
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


def _signatures(tree, prefix):
    """Give the dotted name of each function, nested ones too, with the number of its parameters but self."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _signatures(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield prefix + node.name, len([one for one in given if one.arg not in ("self", "cls")])
            yield from _signatures(node, f"{prefix}{node.name}.")
        else:
            yield from _signatures(node, prefix)


def _is_public(name):
    """Whether programs call it by a name of TensorFlow's: a function of a namespace, or a method of a class of one."""
    head, _, method = name.partition(".")
    if method.startswith("_") and method != "__init__":
        return False
    namespaces = [
        gs,
        gs.train,
        gs.nn,
        gs.image,
        gs.graph_util,
        gs.saved_model,
        gs.saved_model.builder,
        gs.feature_column,
        gs.sparse,
        gs.strings,
        gs.test,
        gs.lookup,
        gs.contrib.lookup,
        gs.losses,
        gs.layers,
        gs.metrics,
        gs.contrib.metrics,
        gs.summary,
        gs.contrib.layers,
        gs.contrib.learn.datasets.mnist,
        gs.contrib.losses,
        gs.contrib.slim,
        gs.contrib.slim.learning,
        gs.contrib.framework,
    ]
    namespaces += [gs.nn.rnn_cell, gs.contrib.rnn, gs.contrib.seq2seq]
    return not head.startswith("_") and any(head in dir(one) for one in namespaces)
