"""Every path of TensorFlow's own modules is made of public names that are there."""

import importlib
import sys

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.module_paths import ModulePath, module_paths


def paths():
    for name in ("contrib", "core", "examples", "python"):
        importlib.import_module(f"globalstep.{name}")
    return {name: module for name, module in sys.modules.items() if isinstance(module, ModulePath) and module.sources}


def test_every_name_of_every_path_is_there():
    missing = []
    for path, module in paths().items():
        assert importlib.import_module(path) is module
        assert module.__all__, path
        for name in module.__all__:
            try:
                getattr(module, name)
            except (AttributeError, ImportError) as error:
                missing.append(f"{path}.{name}: {error}")
    assert len(paths()) > 100
    assert not missing


def test_they_can_be_imported_under_globalsteps_own_name():
    from globalstep.core.protobuf import meta_graph_pb2
    from globalstep.python.client import timeline
    from globalstep.python.framework import ops
    from globalstep.python.ops.nn import relu
    from globalstep.python.platform import gfile

    assert ops.Tensor is gs.Tensor
    assert meta_graph_pb2.TensorInfo is type(gs.saved_model.utils.build_tensor_info(gs.constant(1.0)))
    assert relu is gs.nn.relu
    assert gfile.GFile is gs.gfile.GFile
    assert gs.python.client.timeline is timeline


def test_a_star_import_takes_what_is_public():
    names = {}
    exec("from globalstep.python.training.training import *", names)
    assert names["AdamOptimizer"] is gs.train.AdamOptimizer
    # What the module of TensorFlow does not have would hide what a program has by that name.
    names = {"dynamic_rnn": "mine"}
    exec("from globalstep.python.ops.rnn_cell import *", names)
    assert (names["GRUCell"], names["dynamic_rnn"]) == (gs.nn.rnn_cell.GRUCell, "mine")


def test_a_name_that_a_path_lacks_has_its_hint():
    from globalstep.python.framework import graph_util

    with pytest.raises(AttributeError, match=r"has no attribute 'nosuch': of TensorFlow's own modules "):
        _ = gs.python.framework.nosuch
    assert graph_util.convert_variables_to_constants is gs.graph_util.convert_variables_to_constants
    with pytest.raises(AttributeError, match=r"print values by gs.Print"):
        _ = gs.python.debug.LocalCLIDebugHook
    with pytest.raises(ModuleNotFoundError, match=r"use gs.data"):
        importlib.import_module("globalstep.python.data")
    assert not hasattr(graph_util, "__wrapped__")


def test_the_paths_above_are_made_too():
    sys.modules["globalstep_test_paths"] = type(sys)("globalstep_test_paths")
    try:
        assert module_paths("globalstep_test_paths", {"a.b.c": "gs.train", "a.b": "gs"}) == ["a"]
        top = sys.modules["globalstep_test_paths"]
        assert top.a.b.Session is gs.Session
        assert top.a.b.c.Saver is gs.train.Saver
        assert "Saver" in dir(top.a.b.c)
    finally:
        for name in [name for name in sys.modules if name.startswith("globalstep_test_paths")]:
            del sys.modules[name]


def test_files_by_the_names_of_file_io(tmp_path):
    from globalstep.python.lib.io import file_io

    path = str(tmp_path / "a.txt")
    file_io.write_string_to_file(path, "text")
    assert file_io.file_exists(path)
    assert (file_io.read_file_to_string(path), file_io.read_file_to_string(path, binary_mode=True)) == ("text", b"text")
    with file_io.FileIO(path, "a") as file:
        file.write("more")
    file_io.copy(path, str(tmp_path / "b.txt"))
    assert file_io.get_matching_files([str(tmp_path / "a*"), str(tmp_path / "b*")]) == [path, str(tmp_path / "b.txt")]
    file_io.recursive_create_dir(str(tmp_path / "c" / "d"))
    assert [folders for _, folders, _ in file_io.walk(str(tmp_path))][:2] == [["c"], ["d"]]
    with pytest.raises(gs.errors.NotFoundError):
        file_io.read_file_to_string(str(tmp_path / "none"))


def test_the_averages_that_programs_take_from_there():
    from globalstep.python.training import moving_averages

    average = gs.Variable(1.0, trainable=False)
    update = moving_averages.assign_moving_average(average, gs.constant(3.0), 0.5, zero_debias=False)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        session.run(update)
        np.testing.assert_allclose(session.run(average), 2.0)
