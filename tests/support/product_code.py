"""The product's modules as files and as trees, for tests of the rules that the code keeps."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("ps", "worker", "chief", "deploy", "tf1")
_GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


@functools.cache
def modules_of(*folders):
    """Give the modules below folders of the repository, but those that are generated."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if not _GENERATED.search(path.name)]


def product_modules():
    return modules_of("src/globalstep", *ROLES)


def relative(path):
    return str(path.relative_to(ROOT))


def module_name(path):
    """Give the name that a product's file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("globalstep", *(parts[2:] if parts[0] == "src" else parts))).removesuffix(".__init__")
