"""Every example in a docstring does what it shows."""

import doctest
import importlib

import pytest
from product_code import module_name, product_modules

from globalstep.tf1.graph.graph import reset_default_graph

#: Modules of optional extras, whose packages may be absent.
_OPTIONAL = (
    "globalstep.tf1.frameworks.torch_loss",
    "globalstep.tf1.frameworks.jax_loss",
    "globalstep.torch",
    "globalstep.jax",
)
_MODULES = sorted(module_name(path) for path in product_modules() if ">>> " in path.read_text())


@pytest.mark.parametrize("name", _MODULES)
def test_examples(name):
    if name in _OPTIONAL:
        pytest.importorskip(name.rpartition(".")[2].removesuffix("_loss"), reason="its framework is not installed")
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name):
        # Each is a program of its own, whose names start anew.
        reset_default_graph()
        runner.run(example)
    assert runner.failures == 0
