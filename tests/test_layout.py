"""The rules of the house that a reader would otherwise have to check by eye."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

from product_code import ROLES, ROOT, module_name, modules_of, parsed, relative

TOP = ("proto", *ROLES)
#: Modules of src/globalstep that are namespaces: they name what lies on higher layers.
NAMESPACES = {
    *(
        "__init__",
        "__main__",
        "absent",
        "app",
        "compat",
        "contrib",
        "image",
        "core",
        "data",
        "distributions",
        "examples",
        "feature_column",
        "file_io",
        "lookup",
        "sparse",
        "strings",
        "initializers",
        "keras",
        "jax",
        "layers",
        "logging",
        "debugging",
        "distribute",
        "io",
        "linalg",
        "math",
        "nest",
        "queue",
        "metrics",
        "nn",
        "optim",
    ),
    *(
        "as_tensorflow",
        "module_paths",
        "python",
        "python_io",
        "random",
        "framework_names",
        "graph_util",
        "saved_model",
        "summary",
        "test",
        "gradient_checker",
        "test_case",
        "torch",
        "train",
    ),
}
#: What each layer may import besides itself.
LOWER = {
    "proto": {"proto"},
    "shared": {"proto", "shared"},
    "ps": {"proto", "shared", "ps"},
    "worker": {"proto", "shared", "worker"},
    "chief": {"proto", "shared", "worker", "chief"},
    "deploy": {"proto", "shared", "ps", "worker", "chief", "deploy"},
    "tf1": {"proto", "shared", "worker", "chief", "deploy", "tf1"},
    "namespace": {"proto", "shared", "ps", "worker", "chief", "deploy", "tf1", "namespace"},
}
#: What knows no wire: neither gRPC nor protobuf.
PURE = (
    *(
        "tf1.graph.graph",
        "cluster.cluster",
        "tf1.optimizers.schedules",
        "tf1.optimizers.optimizers",
        "tf1.gradients.gradients",
        "wire.declarations",
        "wire.expressions",
    ),
    *(
        "ps.store.store",
        "ps.store.arena",
        "ps.store.checking",
        "ps.store.snapshots",
        "rules",
        "ps.store.optimizer_table",
    ),
    *(
        "ps.members.members",
        "ps.shard.events",
        "ps.shard.incarnation",
        "ps.shard.life_cycle",
        "ps.shard.applying",
        "ps.shard.sequencer",
        "ps.shard.reads",
        "ps.shard.shard",
        "ps.members.ending",
    ),
    *(
        "ps.shard.layouts",
        "ps.shard.replies",
        "ps.shard.resources",
        "ps.shard.validation",
        "ps.store.finite",
        "ps.shard.event_log",
        "ps.shard.statistics",
    ),
    *(
        "ps.ledger.signatures",
        "ps.shard.resources",
        "ps.store.cores",
        "ps.access.caller",
        "ps.budget",
        "wire.known_progress",
    ),
    *(
        "ps.ledger.ledger",
        "ps.ledger.push_table",
        "ps.members.presence",
        "ps.members.chief_lease",
        "ps.ledger.journal",
    ),
    *("tf1.execution.plan", "tf1.execution.planner", "worker.protocol.splitting", "chief.sessions.coordinator"),
)
#: What knows the formats of TensorFlow's files, which are protobuf's, but neither gRPC nor the cluster's messages.
WIRELESS = (
    "hooks.checkpoint",
    *(
        "hooks.step",
        "checkpoints.checkpoint_state",
        "hooks.timers",
    ),
)


@functools.cache
def _nodes(path):
    return list(ast.walk(parsed(path)))


def _sources():
    return modules_of("src/globalstep", *TOP)


def _tests():
    return [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__).resolve()]


def _layer(module):
    parts = module.split(".")
    if len(parts) == 1 or parts[1] in NAMESPACES:
        return "namespace"
    return parts[1] if parts[1] in TOP else "shared"


def _imports(path, top_level_only=False):
    """Give every module that a file imports, with the line, by way of globalstep or not."""
    nodes = parsed(path).body if top_level_only else _nodes(path)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno} is a relative import"
            # `from globalstep.ps import store` imports the module globalstep.ps.store.store.
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                yield node.lineno, deeper if _exists(deeper) else node.module


@functools.cache
def _exists(module):
    parts = module.split(".")
    if parts[0] != "globalstep":
        return False
    folder = ROOT if len(parts) > 1 and parts[1] in TOP else ROOT / "src/globalstep"
    path = folder.joinpath(*parts[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_imports_go_down():
    found = []
    for path in _sources():
        layer = _layer(module_name(path))
        for line, module in _imports(path):
            top = module.split(".")[0]
            if top in TOP or (top == "globalstep" and _layer(module) not in LOWER[layer]):
                found.append(f"{relative(path)}:{line}: {layer} imports {module}")
    assert not found


def test_imports_make_no_circle():
    graph = {
        module_name(path): {
            module for _, module in _imports(path, top_level_only=True) if module.startswith("globalstep.")
        }
        for path in _sources()
        if _layer(module_name(path)) != "namespace"
    }
    done, on_the_way = set(), []

    def visit(module):
        if module in done or module not in graph:
            return
        assert module not in on_the_way, " -> ".join([*on_the_way[on_the_way.index(module) :], module])
        on_the_way.append(module)
        for imported in sorted(graph[module]):
            visit(imported)
        on_the_way.pop()
        done.add(module)

    for module in graph:
        visit(module)


def test_every_module_says_what_it_is():
    """The layer is that of its folder; a docstring that names one names no other."""
    found = []
    for path in _sources():
        docstring = ast.get_docstring(parsed(path)) or ""
        layer = re.search(r"Layer: (?:the )?(\w+)", docstring)
        folder = relative(path).partition("/")[0].replace("src", "shared")
        if not docstring or (layer and layer[1] != folder):
            found.append(relative(path))
    assert not found


def test_no_module_has_a_name_that_says_nothing():
    vague = {"utils", "util", "common", "manager", "misc", "helpers"}
    assert not [relative(path) for path in _sources() if path.stem in vague]


def test_no_unfinished_code():
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError\b(?!.*abstract)")
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in _sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert not found


def test_locks_are_taken_by_with():
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in _sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"lock\w*\.(acquire|release)\(", line)
    ]
    assert not found


def test_every_thread_has_a_name():
    found = []
    for path in _sources():
        for node in _nodes(path):
            if not isinstance(node, ast.Call):
                continue
            callee = ast.unparse(node.func)
            given = {keyword.arg for keyword in node.keywords}
            if (callee.endswith("threading.Thread") and "name" not in given) or (
                callee.endswith("ThreadPoolExecutor") and "thread_name_prefix" not in given
            ):
                found.append(f"{relative(path)}:{node.lineno}")
    assert not found


#: Whose nodes have a function of the program, or of an object of one process; all others are data, with a kernel.
_OWN_FUNCTIONS = {
    *("data.iterators", "frameworks.foreign_loss", "inputs.inputs", "inputs.queue_base", "inputs.readers"),
    *("ops.control_flow_ops", "ops.gradient_ops", "text.lookup_tables", "variables.variables"),
}


def test_nodes_are_data():
    made = {
        module_name(path).removeprefix("globalstep.tf1.")
        for path in modules_of("tf1")
        for call in ast.walk(parsed(path))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Node"
        if len(call.args) > 2 or any(keyword.arg == "fn" for keyword in call.keywords)
    }
    assert made == _OWN_FUNCTIONS


def test_tests_do_not_sleep():
    found = [
        relative(path) for path in _tests() if re.search(r"\btime\.sleep\(|from time import .*sleep", path.read_text())
    ]
    assert not found


def test_tests_choose_no_ports():
    # Addresses in data, to which nobody connects, have ports of fewer digits.
    port = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::\]):\d{4,5}")
    found = [f"{relative(path)}: {match}" for path in _tests() for match in port.findall(path.read_text())]
    assert not found


def test_test_files_have_unique_names():
    names = [path.name for path in _tests() if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_nothing_names_a_folder_of_one_machine():
    private = re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/\w")
    suffixes = {".py", ".md", ".toml", ".yml", ".yaml", ".proto", ".sh"}
    found = [
        f"{relative(path)}: {match}"
        for folder in ("src", *TOP, "spec", "tests", "examples", "benchmarks", "docs", "scripts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and path != Path(__file__).resolve()
        for match in private.findall(path.read_text())
    ]
    assert not found


def _import_without(refused, modules):
    """Import modules in a process where some others cannot be imported."""
    program = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in refused):
            raise ImportError(f"{name} is not for the pure core")

refused = sys.argv[1].split()
sys.meta_path.insert(0, Blocked())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""
    command = [sys.executable, "-c", program, " ".join(refused), *(f"globalstep.{name}" for name in modules)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_pure_core_knows_no_wire():
    """What can be tested without a socket can be imported without gRPC and protobuf."""
    _import_without(("google", "grpc"), PURE)


def test_savers_and_hooks_know_no_messages_of_the_cluster():
    """They talk to the cluster through its client only."""
    _import_without(
        ("grpc", "globalstep.proto"),
        [
            *(f"chief.{name}" for name in WIRELESS),
            *(f"tf1.hooks.{name}" for name in ("checkpoint", "prefetch", "profile", "step", "summary", "values")),
            *("tf1.ops.summaries", "tf1.sessions.saver"),
        ],
    )


def test_a_ps_process_loads_no_worker_code():
    program = (
        "import sys, globalstep.ps.__main__; "
        "above = ('globalstep.worker', 'globalstep.chief', 'globalstep.tf1'); "
        "print(*(m for m in sys.modules if m.startswith(above)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
