"""Wide and deep: feature columns of lines of CSV, read by tf.data, with partitioned tables, by TF_CONFIG."""

import json
import os
import sys

import numpy as np

import globalstep as tf

CITIES = ["bern", "oslo", "rome", "wien"]
HEADER = ["label", "age", "city", "shop"]


def write_lines(path, seed):
    random = np.random.RandomState(seed)
    with open(path, "w") as lines:
        for _ in range(2000):
            age, city, shop = random.randint(18, 80), random.choice(CITIES), random.randint(500)
            likes = (age > 40) != (city in ("oslo", "rome"))
            lines.write(f"{int(likes)},{age},{city},shop{shop}\n")


def inputs(path):
    def parse(lines):
        columns = tf.io.decode_csv(lines, record_defaults=[[0.0], [0.0], [" "], [" "]])
        features = dict(zip(HEADER, columns, strict=True))
        return features, features.pop("label")

    dataset = tf.data.TextLineDataset(path).shuffle(500).repeat().batch(64).map(parse).prefetch(2)
    return dataset.make_one_shot_iterator().get_next()


def columns():
    fc = tf.feature_column
    age = fc.bucketized_column(fc.numeric_column("age"), [30, 40, 50, 60])
    city = fc.categorical_column_with_vocabulary_list("city", CITIES)
    shop = fc.categorical_column_with_hash_bucket("shop", 300)
    wide = [age, city, fc.crossed_column([age, "city"], 100)]
    deep = [fc.numeric_column("age", normalizer_fn=lambda x: x / 80.0), fc.indicator_column(city)]
    return wide, [*deep, fc.embedding_column(shop, 8)]


def main(run_dir, last_step):
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()
    partitioner = tf.fixed_size_partitioner(len(config["cluster"]["ps"]))
    path = f"{run_dir}-lines-{index}.csv"
    write_lines(path, index)
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        features, label = inputs(path)
        wide, deep = columns()
        with tf.variable_scope("wide"):
            logits = tf.feature_column.linear_model(features, wide)
        with tf.variable_scope("deep", partitioner=partitioner, reuse=tf.AUTO_REUSE):
            hidden = tf.layers.dense(tf.feature_column.input_layer(features, deep), 16, activation=tf.nn.relu)
            logits += tf.layers.dense(hidden, 1)
        loss = tf.losses.sigmoid_cross_entropy(tf.reshape(label, [-1, 1]), logits)
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    hooks = [tf.train.StopAtStepHook(last_step=last_step)]
    losses = []
    with tf.train.MonitoredTrainingSession(
        master=server.target, is_chief=index == 0, checkpoint_dir=run_dir, hooks=hooks
    ) as session:
        while not session.should_stop():
            losses.append(session.run([loss, train_op])[0])
    if losses:
        print(f"losses {np.mean(losses[:3])} {np.mean(losses[-10:])}")
    if index == 0:
        print(f"step {tf.train.load_variable(run_dir, 'global_step')}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
