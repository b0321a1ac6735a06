"""Estimators, as their users see them; numbers and texts are those of TensorFlow 1.15's own tests."""

import json
import os

import numpy as np
import pytest

import globalstep as tf
from globalstep.contrib.learn.python.learn import learn_runner
from globalstep.errors import InvalidArgumentError, NotFoundError
from globalstep.python.estimator.canned import dnn, linear, optimizers
from globalstep.python.estimator.canned import head as canned_head

ROWS = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
TARGETS = ROWS @ np.array([1.0, -2.0], np.float32)
KINDS = np.array(["a", "b", "c"])[np.arange(200) % 3]
KIND = tf.feature_column.categorical_column_with_vocabulary_list("kind", ["a", "b", "c"])
NUMBERS = tf.feature_column.numeric_column("x", shape=(2,))


@pytest.fixture(autouse=True)
def closed_writers():
    yield
    tf.summary.FileWriterCache.clear()


def batches(repeated=False):
    data = tf.data.Dataset.from_tensor_slices(({"x": ROWS, "kind": KINDS}, (TARGETS > 0).astype(np.int64)))
    return (data.repeat() if repeated else data).batch(50)


def regression(features, labels, mode, params):
    weight = tf.get_variable("weight", [2, 1], initializer=tf.zeros_initializer())
    predictions = tf.squeeze(tf.matmul(features["x"], weight), 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.losses.mean_squared_error(labels, predictions)
    train_op = tf.train.GradientDescentOptimizer(params["rate"]).minimize(loss, tf.train.get_global_step())
    metrics = {"error": tf.metrics.mean_absolute_error(labels, predictions)}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def rows(num_epochs=None):
    return tf.estimator.inputs.numpy_input_fn({"x": ROWS}, TARGETS, 50, num_epochs, shuffle=False)


@pytest.fixture
def trained(tmp_path):
    return tf.estimator.Estimator(regression, str(tmp_path), params={"rate": 0.1}).train(rows(), steps=30)


class TestOwnModel:
    def test_it_learns_and_goes_on_from_its_checkpoint(self, trained):
        first = trained.evaluate(rows(1))
        assert first["global_step"] == 30
        again = tf.estimator.Estimator(regression, trained.model_dir, params={"rate": 0.1})
        assert again.train(rows(), max_steps=60).evaluate(rows(1))["error"] < first["error"]
        assert again.train(rows(), max_steps=60).evaluate(rows(1))["global_step"] == 60
        np.testing.assert_allclose(again.get_variable_value("weight").ravel(), [1, -2], atol=0.05)

    def test_predictions_are_of_single_examples(self, trained):
        found = list(trained.predict(rows(1)))
        weight = trained.get_variable_value("weight")
        np.testing.assert_allclose([one["y"] for one in found], (ROWS @ weight).ravel(), rtol=1e-5)
        assert len(next(trained.predict(rows(1), yield_single_examples=False))["y"]) == 50

    def test_a_predictor_gives_what_predict_gives(self, trained):
        def receive():
            inputs = {"x": tf.placeholder(tf.float32, [None, 2])}
            return tf.estimator.export.ServingInputReceiver(inputs, inputs)

        predict = tf.contrib.predictor.from_estimator(trained, receive)
        found = predict({"x": ROWS})["y"]
        predict.session.close()
        np.testing.assert_allclose(found.ravel(), [one["y"] for one in trained.predict(rows(1))], rtol=1e-6)
        with pytest.raises(ValueError, match="output_key 'other' is not among the export outputs"):
            tf.contrib.predictor.from_estimator(trained, receive, "other")

    def test_results_of_an_evaluation_are_summaries_of_its_step(self, trained):
        result = trained.evaluate(rows(1), name="held_out")
        metrics = tf.contrib.estimator.read_eval_metrics(trained.eval_dir("held_out"))
        assert metrics == {30: pytest.approx({"error": result["error"], "loss": result["loss"]})}

    def test_a_new_model_begins_warm(self, trained, tmp_path_factory):
        warm = tf.estimator.Estimator(
            regression, str(tmp_path_factory.mktemp("warm")), params={"rate": 0.0}, warm_start_from=trained.model_dir
        )
        warm.train(rows(), steps=1)
        np.testing.assert_array_equal(warm.get_variable_value("weight"), trained.get_variable_value("weight"))

    def test_more_metrics_and_features_that_are_passed_on(self, trained):
        def largest(labels, predictions, features):
            return {"largest": tf.metrics.mean(tf.reduce_max(labels)), "rows": tf.metrics.mean(features["x"])}

        more = tf.contrib.estimator.add_metrics(trained, largest)
        assert {"error", "largest", "rows"} <= set(more.evaluate(rows(1)))
        passed_on = next(tf.contrib.estimator.forward_features(trained, "x").predict(rows(1)))
        np.testing.assert_array_equal(passed_on["x"], ROWS[0])

    @pytest.mark.parametrize(
        ("wrong", "error", "text"),
        [
            (
                lambda it: it.train(rows(), steps=1, max_steps=1),
                ValueError,
                "Can not provide both steps and max_steps.",
            ),
            (lambda it: it.train(rows(), steps=0), ValueError, "Must specify steps > 0, given: 0"),
            (lambda it: it.evaluate(rows(), steps=-1), ValueError, "Must specify steps > 0, given: -1"),
            (lambda it: next(it.predict(rows(1), predict_keys="z")), ValueError, "Expected to run at least one output"),
            (lambda it: it.train(rows(), hooks=["hook"]), TypeError, "All hooks must be SessionRunHook instances"),
            (lambda it: tf.estimator.Estimator(lambda labels: None), ValueError, "must include features argument"),
        ],
    )
    def test_wrong_arguments(self, trained, wrong, error, text):
        with pytest.raises(error, match=text):
            wrong(trained)


@pytest.mark.parametrize(
    ("head", "size", "dtype", "loss"),
    [
        (canned_head._binary_logistic_head_with_sigmoid_cross_entropy_loss(), 1, tf.float32, np.log1p(np.e)),
        (canned_head._multi_class_head_with_softmax_cross_entropy_loss(3), 3, tf.int64, np.log(3)),
        (
            canned_head._binary_logistic_or_multi_class_head(2, None, None, tf.losses.Reduction.SUM),
            1,
            tf.float32,
            np.log1p(np.e),
        ),
        (
            canned_head._binary_logistic_or_multi_class_head(3, None, None, tf.losses.Reduction.SUM),
            3,
            tf.int64,
            np.log(3),
        ),
        (canned_head._regression_head(label_dimension=2), 2, tf.float32, 2),
        (canned_head._regression_head_with_mean_squared_error_loss(), 1, tf.float32, 1),
    ],
)
def test_heads_by_the_names_of_tensorflows_own_module_add_up_losses(head, size, dtype, loss):
    labels = tf.zeros([4, 1 if dtype == tf.int64 else size], dtype)
    spec = head.create_estimator_spec({}, tf.estimator.ModeKeys.EVAL, tf.ones([4, size]), labels)
    with tf.Session() as session:
        assert session.run(spec.loss) == pytest.approx(4 * loss, rel=1e-5)


def test_an_optimizer_by_its_name():
    made = optimizers.get_optimizer_instance("Adagrad", 0.5)
    assert isinstance(made, tf.train.AdagradOptimizer)
    assert optimizers.get_optimizer_instance(lambda: made) is optimizers.get_optimizer_instance(made) is made
    for wrong, text in (("SGD", "must be specified"), ("Best", "Unsupported optimizer name: Best"), (3, "not an Opt")):
        with pytest.raises(ValueError, match=text):
            optimizers.get_optimizer_instance(wrong)


def test_logits_that_models_copied_from_tensorflow_build():
    parts = [
        dnn._dnn_logit_fn_builder(1, [4], [NUMBERS], tf.nn.relu, 0.5),
        linear._linear_logit_fn_builder(1, [NUMBERS]),
    ]
    logits = [parts[0](features={"x": ROWS}, mode="eval"), parts[1](features={"x": ROWS})]
    assert [one.shape.as_list() for one in logits] == [[200, 1]] * 2
    assert [one.op.name for one in tf.global_variables()][::2] == [
        "hiddenlayer_0/kernel",
        "logits/kernel",
        "linear_model/x/weights",
    ]


def serving():
    inputs = {"x": tf.placeholder(tf.float32, [None, 2]), "kind": tf.placeholder(tf.string, [None])}
    return tf.estimator.export.ServingInputReceiver(inputs, inputs)


@pytest.fixture
def wide_and_deep(tmp_path):
    return tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=[NUMBERS, KIND],
        dnn_feature_columns=[NUMBERS, tf.feature_column.embedding_column(KIND, 2)],
        dnn_hidden_units=[8],
        config=tf.estimator.RunConfig(str(tmp_path), tf_random_seed=1, save_checkpoints_steps=20),
    )


class TestTrainAndEvaluate:
    def test_in_one_process_with_exports(self, wide_and_deep, caplog):
        exporters = [
            tf.estimator.FinalExporter("final", serving),
            tf.estimator.BestExporter("best", serving, exports_to_keep=1),
        ]
        metrics, exports = tf.estimator.train_and_evaluate(
            wide_and_deep,
            tf.estimator.TrainSpec(lambda: batches(True), max_steps=60),
            tf.estimator.EvalSpec(batches, steps=None, throttle_secs=0, exporters=exporters),
        )
        assert metrics["global_step"] == 60
        assert metrics["accuracy"] > 0.9
        assert {"auc", "average_loss", "label/mean", "prediction/mean", "precision"} <= set(metrics)
        for name in ("final", "best"):
            assert len(os.listdir(os.path.join(wide_and_deep.model_dir, "export", name))) == 1
        # What is so at each export is not said again and again.
        assert caplog.text.count("without its .onnx file") <= 1
        assert "Classification input must be" not in caplog.text
        ours = list(wide_and_deep.predict(batches))
        with tf.Graph().as_default(), tf.Session() as session:
            meta = tf.saved_model.loader.load(session, ["serve"], os.fsdecode(exports[0]))
            signature = meta.signature_def["predict"]
            features = {signature.inputs["x"].name: ROWS, signature.inputs["kind"].name: KINDS}
            theirs = session.run(signature.outputs["logistic"].name, features)
        np.testing.assert_allclose(theirs, [one["logistic"] for one in ours], rtol=1e-4)

    @pytest.mark.parametrize("schedule", [None, "train"])
    def test_experiments_of_2017(self, tmp_path, schedule):
        def experiment(run_config, hparams):
            made = tf.estimator.Estimator(regression, config=run_config, params={"rate": hparams.rate})
            return tf.contrib.learn.Experiment(made, rows(), rows(1), train_steps=30, eval_steps=None)

        config = tf.contrib.learn.RunConfig(model_dir=str(tmp_path))
        hparams = tf.contrib.training.HParams(rate=0.1)
        found = learn_runner.run(experiment, schedule=schedule, run_config=config, hparams=hparams)
        assert found.latest_checkpoint() if schedule else found[0]["error"] < 0.1
        assert tf.contrib.learn.learn_runner.run(experiment, None, "evaluate", config, hparams)["global_step"] == 30
        with pytest.raises(ValueError, match="non-existent task fly"):
            learn_runner.run(experiment, None, "fly", config, hparams)
        with pytest.raises(ValueError, match="not both"):
            learn_runner.run(experiment, str(tmp_path), run_config=config)

    def test_features_of_serialized_examples(self, tmp_path):
        made = [
            tf.train.Example(
                features=tf.train.Features(
                    feature={
                        "kind": tf.train.Feature(bytes_list=tf.train.BytesList(value=[KINDS[at].encode()] * (at % 3))),
                        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(at % 3 == 1)])),
                    }
                )
            ).SerializeToString()
            for at in range(60)
        ]
        spec = tf.estimator.classifier_parse_example_spec([KIND], "label")

        def parsed(repeated=False):
            data = tf.data.Dataset.from_tensor_slices(made)
            data = (data.repeat() if repeated else data).batch(20).map(lambda one: tf.parse_example(one, spec))
            return data.map(lambda features: (features, features.pop("label")))

        linear = tf.estimator.LinearClassifier([KIND], str(tmp_path))
        assert linear.train(lambda: parsed(True), steps=50).evaluate(parsed)["accuracy"] == 1


class TestHeads:
    LOGITS = np.array([[45.0], [-41.0]], np.float32)

    def evaluated(self, head, logits, labels, features=None):
        spec = head.create_estimator_spec(features or {}, tf.estimator.ModeKeys.EVAL, logits, labels)
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
            loss, metrics = session.run([spec.loss, {key: one[1] for key, one in spec.eval_metric_ops.items()}])
        return loss, metrics

    def test_two_classes(self):
        head = tf.contrib.estimator.binary_classification_head(thresholds=[0.25], loss_reduction="weighted_sum")
        loss, metrics = self.evaluated(head, self.LOGITS, np.array([[1], [1]]))
        assert loss == pytest.approx(41.0)
        assert metrics["average_loss"] == pytest.approx(20.5)
        assert (metrics["accuracy"], metrics["recall"], metrics["precision"]) == (0.5, 0.5, 1.0)
        assert (metrics["accuracy_baseline"], metrics["accuracy/positive_threshold_0.25"]) == (1.0, 0.5)

    def test_weights_and_names_of_several_classes(self):
        head = tf.contrib.estimator.multi_class_head(
            3, weight_column="w", label_vocabulary=["a", "b", "c"], loss_reduction="weighted_sum"
        )
        logits = np.array([[10, 0, 0], [0, 10, 0]], np.float32)
        features = {"w": np.array([[1.0], [2.0]], np.float32)}
        loss, metrics = self.evaluated(head, logits, np.array([["b"], ["b"]]), features)
        assert loss == pytest.approx(10.0, abs=1e-3)
        assert metrics["accuracy"] == pytest.approx(2 / 3)

    def test_labels_of_another_shape_are_refused_when_they_are_run(self):
        labels = tf.placeholder(tf.float32)
        head = tf.contrib.estimator.regression_head(label_dimension=3)
        loss = head.create_loss({}, tf.estimator.ModeKeys.EVAL, np.ones((2, 3), np.float32), labels).training_loss
        with (
            tf.Session() as session,
            pytest.raises(
                InvalidArgumentError, match=r"\[expected_labels_shape: \] \[2 3\] \[labels_shape: \] \[2 1\]"
            ),
        ):
            session.run(loss, {labels: np.ones((2, 1))})

    def test_several_heads(self):
        one = tf.contrib.estimator.regression_head(name="one")
        two = tf.contrib.estimator.regression_head(name="two")
        head = tf.contrib.estimator.multi_head([one, two], [1.0, 2.0])
        labels = {"one": np.array([[1.0]], np.float32), "two": np.array([[3.0]], np.float32)}
        loss, metrics = self.evaluated(head, np.zeros((1, 2), np.float32), labels)
        assert loss == pytest.approx(1 + 2 * 9)
        assert (metrics["loss/one"], metrics["loss/two"]) == (1, 9)


class TestRunConfig:
    CLUSTER = {"chief": ["a:1"], "ps": ["b:1", "b:2"], "worker": ["c:1", "c:2"]}

    def config(self, monkeypatch, job, index):
        task = {"cluster": self.CLUSTER, "task": {"type": job, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        return tf.estimator.RunConfig()

    @pytest.mark.parametrize(
        ("job", "index", "chief", "number"),
        [("chief", 0, True, 0), ("worker", 1, False, 2), ("ps", 1, False, 4), ("evaluator", 0, False, None)],
    )
    def test_a_task_of_a_cluster(self, monkeypatch, job, index, chief, number):
        config = self.config(monkeypatch, job, index)
        assert (config.task_type, config.task_id, config.is_chief) == (job, index, chief)
        assert config.global_id_in_cluster == number
        counts = (0, 0) if job == "evaluator" else (2, 3)
        assert (config.num_ps_replicas, config.num_worker_replicas) == counts

    def test_a_task_that_there_is_none_of(self, monkeypatch):
        with pytest.raises(ValueError, match="2 is not a valid task_id for task_type worker"):
            self.config(monkeypatch, "worker", 2)

    def test_frequencies_of_checkpoints(self):
        assert tf.estimator.RunConfig().save_checkpoints_secs == 600
        config = tf.estimator.RunConfig(save_checkpoints_steps=5)
        assert (config.save_checkpoints_secs, config.replace(save_checkpoints_secs=3).save_checkpoints_steps) == (
            None,
        ) * 2
        with pytest.raises(ValueError, match="cannot be both set"):
            config.replace(save_checkpoints_secs=1, save_checkpoints_steps=1)
        with pytest.raises(ValueError, match="Replacing master is not supported"):
            config.replace(master="")


def test_an_export_needs_all_variables_of_the_checkpoint(trained):
    def other(features, mode):
        more = tf.get_variable("more", [2, 1])
        return tf.estimator.EstimatorSpec(mode, predictions=tf.matmul(features["x"], more))

    model = tf.estimator.Estimator(other, trained.model_dir)
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.placeholder(tf.float32, [None, 2])})
    with pytest.raises(ValueError, match="Could not load all requested variables from checkpoint") as raised:
        model.export_saved_model(os.path.join(trained.model_dir, "export"), receiver)
    assert isinstance(raised.value.__cause__, NotFoundError)


def test_hooks_have_their_names_in_estimator_too():
    names = [name for name in tf.estimator.__all__ if hasattr(tf.train, name)]
    assert len(names) == 18
    assert all(getattr(tf.estimator, name) is getattr(tf.train, name) for name in names)
