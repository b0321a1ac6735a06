"""contrib.layers: defaults, collections, arg scopes and training ops."""

import logging

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.execution.planner import make_plan

F, L = gs.contrib.framework, gs.contrib.layers


def ready(session):
    session.run(gs.global_variables_initializer())
    return session


def names(variables=None):
    return [variable.op_name for variable in (gs.global_variables() if variables is None else variables)]


class TestArgScope:
    def test_inner_scopes_and_explicit_arguments_win(self):
        @F.add_arg_scope
        def function(a, b=1, c=2):
            return a, b, c

        with F.arg_scope([function], b=10, c=20):
            assert function(0) == (0, 10, 20)
            with F.arg_scope([function], b=100) as inner:
                assert function(0, c=5) == (0, 100, 5)
            assert function(0) == (0, 10, 20)
        with F.arg_scope(inner):
            assert function(0) == (0, 100, 20)
        assert function(0) == (0, 1, 2)
        assert F.arg_scoped_arguments(function) == ("b", "c")

    def test_a_scope_ends_with_its_block_even_by_an_error(self):
        with pytest.raises(KeyError), F.arg_scope([L.conv2d], padding="VALID"):
            raise KeyError
        assert F.current_arg_scope() == {}

    def test_what_cannot_be_is_refused(self):
        with pytest.raises(ValueError, match="is not decorated with @add_arg_scope"), F.arg_scope([gs.matmul]):
            pass
        with pytest.raises(TypeError, match="must either be a list/tuple or reused scope"), F.arg_scope(L.conv2d):
            pass
        with pytest.raises(ValueError, match="kwargs must be empty"), F.arg_scope({}, padding="SAME"):
            pass
        assert not F.has_arg_scope(gs.matmul)
        assert F.has_arg_scope(L.dropout)


def test_layers_rectify_and_number_their_scopes(session):
    x = gs.constant([[1.0, -1.0]])
    y = L.fully_connected(x, 3, weights_initializer=gs.constant_initializer([[1.0, 2, 3], [2, 2, 2]]))
    L.fully_connected(y, 1)
    assert names() == [f"fully_connected{n}/{part}" for n in ("", "_1") for part in ("weights", "biases")]
    assert ready(session).run(y).tolist() == [[0, 0, 1]]
    with pytest.raises(ValueError, match="num_outputs type should be one of"):
        L.fully_connected(x, 3.0)


def test_collections_of_variables_and_results():
    both = {"weights": ["w"], "biases": ["b"]}
    y = L.fully_connected(gs.ones([1, 2]), 3, variables_collections=both, outputs_collections=["out"])
    z = L.conv2d(gs.ones([1, 4, 4, 1]), 2, 3, variables_collections=["w"], outputs_collections="out", scope="c")
    assert names(gs.get_collection("w")) == ["fully_connected/weights", "c/weights", "c/biases"]
    assert names(gs.get_collection("b")) == ["fully_connected/biases"]
    assert gs.get_collection("out") == [y, z]
    assert F.get_model_variables() == gs.global_variables()
    assert names(F.get_variables_by_suffix("biases")) == ["fully_connected/biases", "c/biases"]
    assert names(F.get_variables_by_name("weights", "c")) == ["c/weights"]
    assert names(F.get_variables_to_restore(exclude=["fully_connected"])) == ["c/weights", "c/biases"]
    assert F.get_unique_variable("c/weights").op_name == "c/weights"
    assert names(F.filter_variables(gs.global_variables(), ["c/"], ["bias"])) == ["c/weights"]


def test_a_normalizer_takes_the_place_of_the_biases():
    with F.arg_scope([L.batch_norm], scale=True):
        L.conv2d(gs.ones([1, 4, 4, 1]), 2, 3, normalizer_fn=L.batch_norm)
    parts = ("weights", "BatchNorm/gamma", "BatchNorm/beta", "BatchNorm/moving_mean", "BatchNorm/moving_variance")
    assert names() == [f"Conv/{part}" for part in parts]
    assert len(gs.get_collection(gs.GraphKeys.UPDATE_OPS)) == 2
    assert names(gs.trainable_variables()) == names()[:3]


def test_batch_norm_chooses_in_the_run(session):
    x, training = gs.placeholder(gs.float32, [None, 1]), gs.placeholder(gs.bool, [])
    y = L.batch_norm(x, decay=0.5, is_training=training, updates_collections=None)
    ready(session)
    found = session.run(y, {x: [[1.0], [3.0]], training: True})
    np.testing.assert_allclose(found, [[-1], [1]], atol=1e-3)
    moving = session.run(gs.global_variables()[1:])
    # Half of the mean 2, and of the unbiased variance 2 with the 1 that was there.
    np.testing.assert_allclose(np.ravel(moving), [1.0, 1.5])
    found = session.run(y, {x: [[1.0], [3.0]], training: False})
    np.testing.assert_allclose(found, [[0.0], [2 / np.sqrt(1.501)]], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(session.run(gs.global_variables()[1:])), [1.0, 1.5])
    with pytest.raises(ValueError, match="knows no zero_debias_moving_mean"):
        L.batch_norm(x, zero_debias_moving_mean=True)


def test_dropout_and_one_hot(session):
    x = gs.ones([100])
    assert set(session.run(L.dropout(x, 0.75, seed=1)).tolist()) == {0.0, np.float32(4 / 3)}
    assert L.dropout(x, 0.75, is_training=False) is x
    assert session.run(L.one_hot_encoding([1, 0], 2)).tolist() == [[0, 1], [1, 0]]


def test_embeddings(session):
    ids = gs.constant([[0, 2], [1, 1]])
    table = gs.constant_initializer([[1.0], [2.0], [3.0]])
    rows = L.embed_sequence(ids, 3, 1, initializer=table, scope="e")
    again = L.embed_sequence(ids, scope="e", reuse=True)
    bag = L.bow_encoder(ids, 3, 1, initializer=table)
    assert names() == ["e/embeddings", "bow_encoder/embeddings"]
    found = ready(session).run([rows, again, bag])
    assert [value.tolist() for value in found] == [[[[1], [3]], [[2], [2]]]] * 2 + [[[2], [2]]]
    with pytest.raises(ValueError, match="Must specify vocab size and embedding dimension"):
        L.embed_sequence(ids)


def test_initializers_keep_to_their_bounds(session):
    gs.set_random_seed(1)
    drawn = {
        "xavier": (L.xavier_initializer(), np.sqrt(6 / 300), np.sqrt(2 / 300)),
        "normal": (L.xavier_initializer(uniform=False), 2 * np.sqrt(1.3 * 2 / 300), np.sqrt(2 / 300)),
        "he": (L.variance_scaling_initializer(), 2 * np.sqrt(1.3 * 2 / 100), np.sqrt(2 / 100)),
        "out": (L.variance_scaling_initializer(3.0, "FAN_OUT", True), np.sqrt(9 / 200), np.sqrt(3 / 200)),
    }
    for name, (initializer, bound, deviation) in drawn.items():
        values = session.run(initializer([100, 200]))
        assert bound * 0.99 < np.abs(values).max() <= bound, name
        assert np.std(values) == pytest.approx(deviation, rel=0.02), name
    with pytest.raises(TypeError, match="Unknown mode FAN"):
        L.variance_scaling_initializer(mode="FAN")
    with pytest.raises(TypeError, match="non-floating point type"):
        L.xavier_initializer(dtype=gs.int32)


def test_summaries_of_collections(session):
    y = L.fully_connected(gs.ones([1, 2]), 3, outputs_collections=[gs.GraphKeys.ACTIVATIONS], scope="fc")
    L.summarize_collection(gs.GraphKeys.GLOBAL_VARIABLES, ".*biases")
    L.summarize_variables("fc/weights")
    L.summarize_activations()
    L.summarize_tensors([gs.reduce_sum(y, name="total")])
    assert L.summarize_tensor(gs.constant("a")) is None
    merged = ready(session).run(gs.summary.merge_all())
    tags = {value.tag for value in gs.Summary.FromString(merged).value}
    assert {"fc/biases_summary", "fc/weights_summary", "total_summary"} <= tags
    assert {tag for tag in tags if "Relu" in tag} == {"fc/Relu/zeros", "fc/Relu/activation"}


class TestOptimizeLoss:
    def model(self):
        w = gs.get_variable("w", initializer=[3.0, 4.0])
        return w, gs.reduce_sum(gs.square(w)) / 2

    @pytest.mark.parametrize("optimizer", ["SGD", gs.train.GradientDescentOptimizer,
                                           lambda rate: gs.train.GradientDescentOptimizer(rate)])  # fmt: skip
    def test_a_step(self, session, optimizer):
        w, loss = self.model()
        step = gs.train.get_or_create_global_step()
        train = L.optimize_loss(loss, step, 0.5, optimizer)
        assert names() == ["w", "global_step", "OptimizeLoss/learning_rate"]
        assert ready(session).run(train) == 12.5
        assert session.run(w).tolist() == [1.5, 2.0]
        assert session.run(step) == 1

    def test_rates_multipliers_and_norms(self, session):
        w, loss = self.model()
        step = gs.train.get_or_create_global_step()
        train = L.optimize_loss(
            loss, step, 1.0, "SGD", clip_gradients=1.0, gradient_multipliers={"w:0": 2.0},
            learning_rate_decay_fn=lambda rate, at: gs.train.exponential_decay(rate, at, 1, 0.5),
            summaries=gs.contrib.layers.OPTIMIZER_SUMMARIES, name="train", increment_global_step=False,
        )  # fmt: skip
        ready(session).run(train)
        np.testing.assert_allclose(session.run(w), [2.4, 3.2], rtol=1e-6)
        assert session.run(step) == 0
        merged = gs.Summary.FromString(session.run(gs.summary.merge_all()))
        values = {value.tag: value.simple_value for value in merged.value}
        assert values["train/global_norm/gradient_norm"] == pytest.approx(8)
        assert values["train/global_norm/clipped_gradient_norm"] == pytest.approx(1)
        # The Variable of the rate has the plain name.
        assert values["train/learning_rate_1"] == 1

    def test_update_ops_run_with_it(self, session):
        _, loss = self.model()
        seen = gs.Variable(0.0, trainable=False)
        gs.add_to_collection(gs.GraphKeys.UPDATE_OPS, gs.assign_add(seen, 1.0))
        gs.train.get_or_create_global_step()
        train = L.optimize_loss(loss, None, 0.5, "Momentum")
        ready(session).run(train)
        assert session.run(seen) == 1

    def test_what_means_nothing_is_refused(self):
        _, loss = self.model()
        step = gs.train.get_or_create_global_step()
        with pytest.raises(ValueError, match="Optimizer name should be one of"):
            L.optimize_loss(loss, step, 0.5, "Rprop")
        with pytest.raises(ValueError, match="Learning rate should be 0d Tensor or float"):
            L.optimize_loss(loss, step, 1, "SGD")
        with pytest.raises(ValueError, match=r"Invalid learning_rate -1\.0"):
            L.optimize_loss(loss, step, -1.0, "SGD")
        with pytest.raises(ValueError, match="Learning rate is None"):
            L.optimize_loss(loss, step, None, "SGD")
        with pytest.raises(ValueError, match="Summaries should be one of"):
            L.optimize_loss(loss, step, 0.5, "SGD", summaries=["weights"])
        with pytest.raises(ValueError, match="Unknown type <class 'int'> for clip_gradients"):
            L.optimize_loss(loss, step, 0.5, "SGD", clip_gradients=5)
        with pytest.raises(ValueError, match="Unrecognized optimizer"):
            L.optimize_loss(loss, step, 0.5, 5)


def test_losses_of_contrib_take_predictions_first(session, caplog):
    caplog.set_level(logging.WARNING)
    logits = gs.constant([[2.0, 0.0], [0.0, 1.0]])
    theirs = gs.contrib.losses.softmax_cross_entropy(logits, [[1.0, 0.0], [1.0, 0.0]])
    ours = gs.losses.softmax_cross_entropy([[1.0, 0.0], [1.0, 0.0]], logits)
    assert gs.get_collection(gs.GraphKeys.LOSSES) == [theirs, ours]
    assert session.run(theirs) == session.run(ours)
    hinge = gs.contrib.losses.hinge_loss(logits, gs.constant([[1.0, 0.0], [0.0, 1.0]]))
    assert session.run(hinge).tolist() == [[0, 1], [1, 0]]
    assert len(gs.get_collection(gs.GraphKeys.LOSSES)) == 2


def test_values_for_variables(session):
    L.fully_connected(gs.ones([1, 2]), 1, scope="fc")
    assign = F.assign_from_values_fn({"fc/weights": np.array([[1.0], [2.0]])})
    assign(ready(session))
    assert session.run(F.get_unique_variable("fc/weights")).tolist() == [[1], [2]]
    with pytest.raises(ValueError, match="Variable fc/w wasn't found"):
        F.assign_from_values({"fc/w": np.ones(1)})


def test_variables_go_to_one_ps_after_the_other():
    with F.arg_scope([F.variable, F.model_variable], device=F.VariableDeviceChooser(num_tasks=2)):
        made = [F.model_variable(name, [2]) for name in "abc"]
    assert [one.device for one in made] == [f"/job:ps/task:{task}/device:CPU:0" for task in (0, 1, 0)]
    with F.arg_scope([F.variable], device=F.VariableDeviceChooser()):
        assert F.variable("d", [2]).device == "/device:CPU:0"


def test_update_ops_go_with_the_update_in_one_push():
    x = gs.placeholder(gs.float32, [None, 2])
    y = L.fully_connected(L.fully_connected(x, 3, normalizer_fn=L.batch_norm), 1)
    gs.train.get_or_create_global_step()
    loss = gs.reduce_mean(gs.square(y))
    train_ops = [
        L.optimize_loss(loss, None, 0.1, "Adam"),
        gs.contrib.slim.learning.create_train_op(loss, gs.train.AdamOptimizer(0.1)),
    ]
    position = {node: number for number, node in enumerate(gs.get_default_graph().nodes)}
    for train in train_ops:
        (only,) = make_plan([train], frozenset([x]), position).rounds
        assert len(only.mutations) == 3
