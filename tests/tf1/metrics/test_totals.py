"""Where the totals of metrics live, who starts them, and what is refused."""

import numpy as np
import pytest

import globalstep as gs


def test_a_value_is_zero_before_any_update_and_starts_anew_with_the_initializer(session):
    x = gs.placeholder(gs.float32, [None])
    value, update = gs.metrics.mean(x)
    start = gs.local_variables_initializer()
    session.run(start)
    assert session.run(value) == 0
    assert session.run([update, value], {x: [1, 3]})[0] == 2
    assert session.run(value) == 2
    session.run(start)
    assert session.run(value) == 0


def test_each_metric_has_totals_of_its_own(session):
    first, second = gs.metrics.mean([1.0]), gs.metrics.mean([3.0])
    named = gs.metrics.mean([5.0], name="mine")
    names = [variable.op_name for variable in gs.local_variables()]
    assert names == [f"{scope}/{part}" for scope in ("mean", "mean_1", "mine") for part in ("total", "count")]
    session.run(gs.local_variables_initializer())
    assert session.run([first[1], second[1], named[1]]) == [1, 3, 5]


def test_collections(session):
    value, update = gs.metrics.accuracy([1], [1], metrics_collections=["m"], updates_collections="u")
    assert (gs.get_collection("m"), gs.get_collection("u")) == ([value], [update])
    root, step = gs.metrics.root_mean_squared_error([1.0], [3.0], metrics_collections="r", updates_collections="s")
    assert (gs.get_collection("r"), gs.get_collection("s")) == ([root], [step])


@pytest.mark.parametrize(
    "weigh", [lambda v, w: gs.losses.compute_weighted_loss(v, w), lambda v, w: gs.metrics.mean(v, w)[1]]
)
@pytest.mark.parametrize(("weights", "why"), [([1.0], "rank"), (np.ones((2, 2, 2)), "Mismatch at dim 1")])
def test_weights_whose_shape_is_known_in_the_run_are_checked_there(session, weigh, weights, why):
    values, given = gs.placeholder(gs.float32), gs.placeholder(gs.float32)
    loss = weigh(values, given)
    session.run(gs.local_variables_initializer())
    assert session.run(loss, {values: np.ones((2, 3, 2)), given: np.ones((2, 1, 2))}) == 1
    with pytest.raises(gs.errors.InvalidArgumentError, match=f"weights can not be broadcast to values.*{why}"):
        session.run(loss, {values: np.ones((2, 3, 2)), given: weights})


@pytest.mark.parametrize("known", [False, True])
def test_a_last_dimension_of_one_too_many_is_dropped(session, known):
    labels = gs.placeholder(gs.int64, [3, 1] if known else None)
    weights = gs.placeholder(gs.float32, [3, 1] if known else None)
    logits = gs.constant(100 * np.eye(3), gs.float32)
    found = [
        gs.metrics.accuracy(labels, gs.argmax(logits, 1), weights)[1],
        gs.reduce_sum(gs.confusion_matrix(labels, gs.argmax(logits, 1), 3)),
        gs.losses.sparse_softmax_cross_entropy(labels, logits, weights),
    ]
    slope = gs.gradients(found[-1], weights)[0]
    session.run(gs.local_variables_initializer())
    values = session.run([*found, slope], {labels: [[0], [1], [0]], weights: [[1], [1], [0]]})
    np.testing.assert_allclose(np.concatenate([np.ravel(one) for one in values]), [1, 3, 0, 0, 0, 50], atol=1e-6)


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"weights can not be broadcast to values\. Mismatch at dim 0\."):
        gs.metrics.mean(gs.ones([4]), weights=gs.ones([3]))
    with pytest.raises(ValueError, match=r"values\.rank=3\. weights\.rank=1\."):
        gs.metrics.mean(gs.ones([4, 2, 2]), weights=gs.ones([4]))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"Shapes \(2,\) and \(3,\) are incompatible"):
        gs.metrics.precision(gs.ones([3]), gs.ones([2]))


def test_predictions_that_are_no_probabilities_are_refused_by_name(session):
    p = gs.placeholder(gs.float32, [None], name="logits")
    _, update = gs.metrics.auc([0, 1], p)
    session.run(gs.local_variables_initializer())
    with pytest.raises(gs.errors.InvalidArgumentError, match=r"predictions must be in \[0, 1\].*from -1.0 to 2.0"):
        session.run(update, {p: [-1, 2]})


def test_arguments_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="curve must be either ROC or PR, LIFT unknown"):
        gs.metrics.auc([0], [0.5], curve="LIFT")
    with pytest.raises(ValueError, match="Invalid summation_method: simpson"):
        gs.metrics.auc([0], [0.5], summation_method="simpson")
    with pytest.raises(ValueError, match=r"`sensitivity` must be in the range \[0, 1\]"):
        gs.metrics.specificity_at_sensitivity([0], [0.5], 1.5)
    with pytest.raises(ValueError, match="Invalid k=0"):
        gs.metrics.average_precision_at_k([0], [[0.5]], 0)


def test_a_class_that_is_none_is_refused_by_name(session):
    _, update = gs.metrics.mean_per_class_accuracy([0, 7], [0, 1], 3)
    session.run(gs.local_variables_initializer())
    with pytest.raises(gs.errors.InvalidArgumentError, match="has the class 7; the metric has 3 classes"):
        session.run(update)


def test_contrib_takes_predictions_first_and_labels_may_be_sparse(session):
    contrib = gs.contrib.metrics
    sparse = gs.SparseTensorValue([[0, 0], [1, 0], [1, 1]], [1, 0, 2], [2, 2])
    predictions, labels = [1, 1, 1], [1, 0, 1]
    made = contrib.aggregate_metric_map(
        {
            "recall": contrib.streaming_recall(predictions, labels),
            "precision": contrib.streaming_precision(predictions, labels, name="p"),
            "top": contrib.streaming_recall_at_k([[0.1, 0.9], [0.8, 0.2]], [1, 1], 1),
            "sparse": gs.metrics.recall_at_k(sparse, np.eye(3)[[1, 0]], 1),
        }
    )
    session.run(gs.local_variables_initializer())
    found = session.run(made[1])
    assert found == {"recall": 1, "precision": pytest.approx(2 / 3), "top": 0.5, "sparse": pytest.approx(2 / 3)}
    assert session.run(contrib.accuracy(gs.constant(predictions), gs.constant(labels))) == np.float32(2 / 3)
    values, updates = contrib.aggregate_metrics(contrib.streaming_mean([1.0]), contrib.streaming_mean([2.0]))
    assert (len(values), len(updates)) == (2, 2)


def test_totals_of_a_monitored_session_start_by_themselves():
    x = gs.placeholder(gs.float32, [None])
    gs.train.get_or_create_global_step()
    _, update = gs.metrics.mean(x)
    with gs.train.MonitoredTrainingSession() as session:
        assert session.run(update, {x: [1, 2]}) == 1.5


def test_checkpoints_leave_totals_out(session, tmp_path):
    gs.train.get_or_create_global_step()
    gs.metrics.mean([1.0])
    session.run([gs.global_variables_initializer(), gs.local_variables_initializer()])
    path = gs.train.Saver().save(session, str(tmp_path / "model"))
    assert [name for name, _ in gs.train.list_variables(path)] == ["global_step"]


def test_libraries_of_metrics_add_up_confusions_by_tensorflows_own_name(session):
    from globalstep.python.ops.metrics_impl import _streaming_confusion_matrix

    total, update = _streaming_confusion_matrix([0, 1, 1], [0, 0, 1], 2, [1.0, 2.0, 3.0])
    session.run(gs.local_variables_initializer())
    session.run(update)
    assert session.run(update).tolist() == session.run(total).tolist() == [[2, 0], [4, 6]]
