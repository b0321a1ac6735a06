"""Train a wide-and-deep model of incomes by `tf.estimator.train_and_evaluate`, on a census that is made here.

    globalstep launch --ps 2 --workers 2 --chief --evaluator --max-restarts 2 examples/census.py
    python examples/census.py --score

The chief and the workers train, the evaluator evaluates each new checkpoint and exports the newest, the best and the
last model, and each task ends by itself. `--score` then takes the last export, without the model's code.
"""

import argparse
import os

import numpy as np

import globalstep as tf

BATCH_SIZE = 50
EDUCATIONS = ["none", "school", "college", "bachelor", "master", "doctor"]
RELATIONS = ["single", "husband", "wife", "child", "widowed"]
OCCUPATIONS = [f"occupation {number}" for number in range(30)]


def people(seed, count):
    """Make people of a census, and whether each has a high income."""
    random = np.random.default_rng(seed)
    education = random.integers(0, len(EDUCATIONS), count)
    occupation = random.integers(0, len(OCCUPATIONS), count)
    relation = random.integers(0, len(RELATIONS), count)
    age, hours = random.integers(17, 80, count), random.normal(40, 10, count)
    score = 1.2 * (education - 2.5) + 2 * np.sin(occupation) + (relation == 1)
    score += (hours - 40) / 10 - ((age - 48) / 15) ** 2
    features = {
        "age": age.astype(np.float32),
        "hours": hours.astype(np.float32),
        "education": np.array(EDUCATIONS)[education],
        "occupation": np.array(OCCUPATIONS)[occupation],
        "relation": np.array(RELATIONS)[relation],
    }
    return features, (score + random.logistic(0, 0.5, count) > 0).astype(np.int64)


def columns():
    """Give the columns of the wide and of the deep part."""
    column = tf.feature_column
    age, hours = column.numeric_column("age"), column.numeric_column("hours", normalizer_fn=lambda it: (it - 40) / 10)
    ages = column.bucketized_column(age, [25, 35, 45, 55, 65])
    education = column.categorical_column_with_vocabulary_list("education", EDUCATIONS)
    relation = column.categorical_column_with_vocabulary_list("relation", RELATIONS)
    occupation = column.categorical_column_with_hash_bucket("occupation", 100)
    crossed = column.crossed_column([ages, "education", "occupation"], 1000)
    deep = [hours, ages, column.indicator_column(education), column.indicator_column(relation)]
    return [education, relation, occupation, crossed], [*deep, column.embedding_column(occupation, 8)]


def serving():
    """Give what an export takes."""
    made, _ = people(0, 1)
    inputs = {name: tf.placeholder(tf.as_dtype(made[name].dtype), [None], name) for name in made}
    return tf.estimator.export.ServingInputReceiver(inputs, inputs)


def score(run_dir):
    """Score people by the last export."""
    exports = os.path.join(run_dir, "export", "final")
    newest = max(os.listdir(exports), key=int)
    features, rich = people(2, 2000)
    found = tf.contrib.predictor.from_saved_model(os.path.join(exports, newest), "predict")(features)
    print(f"accuracy of the export: {np.mean((found['logistic'][:, 0] > 0.5) == rich):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="global steps to train for")
    parser.add_argument("--run-dir", default=os.path.join("runs", "census"), help="for checkpoints, curves and exports")
    parser.add_argument("--score", action="store_true", help="score people by the last export")
    arguments = parser.parse_args()
    if arguments.score:
        score(arguments.run_dir)
        return

    wide, deep = columns()
    # Workers begin at once, not 5 s one after the other.
    config = tf.estimator.RunConfig(
        arguments.run_dir, save_checkpoints_steps=200, experimental_max_worker_delay_secs=0, tf_random_seed=1
    )
    model = tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide, dnn_feature_columns=deep, dnn_hidden_units=[32, 16], config=config
    )
    seed = [config.task_id, config.is_chief]

    def batches():
        data = tf.data.Dataset.from_tensor_slices(people(seed, 20_000))
        return data.shuffle(2000).repeat().batch(BATCH_SIZE)

    def held_out():
        return tf.data.Dataset.from_tensor_slices(people(1, 2000)).batch(500)

    exporters = [
        tf.estimator.LatestExporter("latest", serving, exports_to_keep=2),
        tf.estimator.BestExporter("best", serving, exports_to_keep=1),
        tf.estimator.FinalExporter("final", serving),
    ]
    tf.estimator.train_and_evaluate(
        model,
        tf.estimator.TrainSpec(batches, max_steps=arguments.steps),
        tf.estimator.EvalSpec(held_out, steps=None, start_delay_secs=0, throttle_secs=0, exporters=exporters),
    )
    print(f"ended: {config.task_type or 'alone'}")


if __name__ == "__main__":
    main()
