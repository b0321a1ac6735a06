"""Names on the pages for those who change the code are those of the code: modules, classes, attributes."""

import ast
import functools
import importlib
import importlib.util
import re

import pytest
from doc_blocks import ROOT

from globalstep.proto import globalstep_pb2 as pb

PAGES = [*sorted((ROOT / "docs/design").glob("*.md")), ROOT / "ARCHITECTURE.md"]
#: What a page calls an object of a class.
OBJECTS = {"session": "Session", "client": "ClusterClient", "optimizer": "Optimizer"}
#: A name with a dot, or the beginning of a call of one.
DOTTED = re.compile(r"(?:python -m )?([A-Za-z_]\w*(?:\.\w+)+)(?:\(.*)?(?: -> .*)?")
#: The last part of names of files that are no modules.
FILES = {"json", "safetensors", "md", "proto", "toml", "sh"}


def _sources():
    for folder in ("src/globalstep", "ps", "worker", "chief", "deploy", "tf1", "tests/simulation", "benchmarks"):
        yield from (ROOT / folder).rglob("*.py")


@functools.cache
def _texts():
    return [path.read_text() for path in _sources()]


@functools.cache
def _classes(name):
    """Give the classes of a name, as they are written."""
    texts = [text for text in _texts() if re.search(rf"^ *class {name}\b", text, re.MULTILINE)]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]


def _with_bases(name):
    """Give the classes of a name, and all that they are made from."""
    found, ahead = {}, [name]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = _classes(name)
            ahead += [ast.unparse(base).split(".")[-1] for node in found[name] for base in node.bases]
    return [node for nodes in found.values() for node in nodes]


def _names(node):
    """Give the names of a class's methods, and what it and its methods assign."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef):
            yield one.name
        elif isinstance(one, ast.Attribute | ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.attr if isinstance(one, ast.Attribute) else one.id


def _has(name, attribute):
    """Whether a class, or a base of it, has an attribute; or a message of the protocol a field."""
    if name in pb.DESCRIPTOR.message_types_by_name:
        return attribute in pb.DESCRIPTOR.message_types_by_name[name].fields_by_name
    return any(attribute in _names(node) for node in _with_bases(name))


@functools.cache
def _modules():
    return {path.stem for path in _sources()}


def _is_there(name):
    """Whether a dotted name of a page is one of the code's."""
    head, *rest = name.split(".")
    if name.startswith("globalstep.v1."):
        return rest[-1] in pb.DESCRIPTOR.message_types_by_name
    if head in ("globalstep", "gs", "benchmarks"):
        parts = ["globalstep" if head == "gs" else head, *rest]
        for end in range(len(parts), 0, -1):
            try:
                found = importlib.util.find_spec(".".join(parts[:end]))
            except ModuleNotFoundError:
                continue
            if found is not None:
                value = importlib.import_module(found.name) if parts[end:] else None
                for part in parts[end:]:
                    value = getattr(value, part, None)
                    if value is None:
                        return False
                return True
        return False
    head = OBJECTS.get(head, head)
    if _classes(head) or head in pb.DESCRIPTOR.message_types_by_name:
        return len(rest) > 1 or _has(head, rest[0])
    return head.islower() and head not in _modules()  # a module stands there with all its packages


def test_a_wrong_name_is_noticed():
    for name in ("globalstep.tf1.graph.Mutation", "mutations.Mutation", "Session.fly", "PushRequest.nothing", "gs.Fly"):
        assert not _is_there(name)
    for name in (
        "globalstep.tf1.graph.mutations.Mutation",
        "Session.run",
        "session.run",
        "PushRequest.layout",
        "gs.Session",
    ):
        assert _is_there(name)


def _code_names(page):
    """Give the number of each line with the names in it that are marked as code."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for code in re.findall(r"`([^`]+)`", line):
            yield number, code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dotted_name_is_there(page):
    gone = [
        f"{page.name}:{number}: {match[1]}"
        for number, code in _code_names(page)
        if (match := DOTTED.fullmatch(code)) and match[1].split(".")[-1] not in FILES | {"py"}
        if not _is_there(match[1])
    ]
    assert not gone


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_python_is_named_with_its_folder(page):
    named = re.compile(r"(?:python )?([\w/]+\.py)(?:::\w+)*")
    gone = [
        f"{page.name}:{number}: {match[1]}"
        for number, code in _code_names(page)
        if (match := named.fullmatch(code)) and not (ROOT / match[1]).is_file()
    ]
    assert not gone
