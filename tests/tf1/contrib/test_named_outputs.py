"""Outputs of layers by name, and what a model's parameters are."""

import logging

import pytest

import globalstep as gs

slim = gs.contrib.slim


def _net(images):
    with (
        gs.variable_scope("net"),
        slim.arg_scope([slim.conv2d, slim.fully_connected, slim.max_pool2d], outputs_collections="ends"),
    ):
        net = slim.repeat(images, 2, slim.conv2d, 4, [3, 3], scope="conv1")
        net = slim.max_pool2d(net, [2, 2], scope="pool1")
        return slim.fully_connected(slim.flatten(net), 3, scope="logits")


def test_outputs_are_named_by_their_scopes():
    logits = _net(gs.zeros([1, 8, 8, 1]))
    ends = slim.utils.convert_collection_to_dict("ends", clear_collection=True)
    assert list(ends) == ["net/conv1/conv1_1", "net/conv1/conv1_2", "net/pool1", "net/logits"]
    assert ends["net/logits"] is logits
    assert ends["net/pool1"].shape.as_list() == [1, 4, 4, 4]
    assert not gs.get_collection("ends")


def test_names_that_are_given():
    utils = slim.utils
    one, other = gs.zeros([2, 5]), gs.zeros([], name="plain")
    assert utils.collect_named_outputs(["a", "b"], "block/", one) is one
    assert utils.collect_named_outputs(None, "none", other) is other
    utils.append_tensor_alias(one, "again")
    assert utils.gather_tensors_aliases([one, other]) == ["block", "again", "plain"]
    assert utils.convert_collection_to_dict("b") == {"block": one, "again": one}
    assert utils.last_dimension(one.shape) == 5
    with pytest.raises(ValueError, match="rank of shape must be at least 4 not: 2"):
        utils.last_dimension(one.shape, min_rank=4)
    with pytest.raises(ValueError, match="last dimension shape must be known"):
        utils.last_dimension(gs.placeholder(gs.float32, [2, None]).shape)


def test_the_modules_can_be_imported():
    from globalstep.contrib.layers.python.layers import utils
    from globalstep.contrib.tfprof import model_analyzer

    assert utils.convert_collection_to_dict is slim.utils.convert_collection_to_dict
    assert model_analyzer is gs.contrib.tfprof.model_analyzer


def test_parameters_are_counted(capsys, caplog):
    _net(gs.zeros([1, 8, 8, 1]))
    gs.Variable(gs.zeros([7]), trainable=False)
    analyzer = gs.contrib.tfprof.model_analyzer
    found = analyzer.print_model_analysis(
        gs.get_default_graph(), tfprof_options=analyzer.TRAINABLE_VARS_PARAMS_STAT_OPTIONS
    )
    wanted = sum(one.shape.num_elements() for one in gs.trainable_variables())
    assert found.total_parameters == wanted == 40 + 148 + 195
    printed = capsys.readouterr().out
    assert f"_TFProfRoot (--/{wanted} params)" in printed
    assert "net/conv1/conv1_1/weights (3x3x1x4, 36/36 params)" in printed
    with caplog.at_level(logging.WARNING, logger="globalstep"):
        analyzer.print_model_analysis(tfprof_options=analyzer.FLOAT_OPS_OPTIONS)
    assert "are not counted" in caplog.text


def test_slims_analyzer_counts_and_lists_variables(capsys):
    variables = [gs.get_variable("w", [2, 3]), gs.get_variable("n", [], gs.float64)]
    assert gs.contrib.slim.model_analyzer.analyze_vars(variables) == (7, 32)
    assert capsys.readouterr().out == ""
    gs.contrib.slim.model_analyzer.analyze_vars(variables, print_info=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["---------", "Variables: name (type shape) [size]", "---------"]
    assert lines[3].startswith("w:0 (float32")
    assert lines[3].endswith(" 2x3) [6, bytes: 24]")
    assert lines[-2:] == ["Total size of variables: 7", "Total bytes of variables: 32"]
