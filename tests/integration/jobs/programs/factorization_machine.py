"""A factorization machine on libsvm-like rows: sparse features, embedding_lookup_sparse, a logistic loss."""

import numpy as np

import globalstep as tf

flags = tf.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("last_step", 300, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where checkpoints go")
flags.DEFINE_float("learning_rate", 0.2, "Learning rate")
FLAGS = flags.FLAGS

FEATURES, FACTORS, BATCH, FIELDS = 40, 4, 64, 3


def rows(random):
    """Three features a row; a click where two of them are of the same kind."""
    ids = np.stack([random.choice(FEATURES, FIELDS, replace=False) for _ in range(BATCH)])
    clicks = (ids[:, 0] % 2 == ids[:, 1] % 2).astype(np.float32)
    places = np.array([[row, field] for row in range(BATCH) for field in range(FIELDS)], np.int64)
    return places, ids.reshape(-1).astype(np.int64), np.ones(BATCH * FIELDS, np.float32), clicks


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    strategy = tf.contrib.training.GreedyLoadBalancingStrategy(
        cluster.num_tasks("ps"), tf.contrib.training.byte_size_load_fn
    )
    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster, ps_strategy=strategy)):
        places = tf.placeholder(tf.int64, [None, 2])
        ids_fed = tf.placeholder(tf.int64, [None])
        weights_fed = tf.placeholder(tf.float32, [None])
        labels = tf.placeholder(tf.float32, [BATCH])
        ids = tf.SparseTensor(places, ids_fed, tf.constant([BATCH, FIELDS], tf.int64))
        values = tf.SparseTensor(places, weights_fed, tf.constant([BATCH, FIELDS], tf.int64))

        linear = tf.get_variable("linear", [FEATURES, 1], initializer=tf.zeros_initializer())
        bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
        factors = tf.get_variable(
            "factors", [FEATURES, FACTORS], initializer=tf.random_normal_initializer(stddev=0.3, seed=3)
        )
        first = tf.reshape(tf.nn.embedding_lookup_sparse(linear, ids, values, combiner="sum"), [-1])
        summed = tf.nn.embedding_lookup_sparse(factors, ids, values, combiner="sum")
        squares = tf.nn.embedding_lookup_sparse(tf.square(factors), ids, values, combiner="sum")
        second = 0.5 * tf.reduce_sum(tf.square(summed) - squares, 1)
        logits = first + second + bias
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        global_step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdagradOptimizer(FLAGS.learning_rate).minimize(loss, global_step=global_step)

    random = np.random.default_rng(FLAGS.task_index)
    losses = []
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.last_step)]
    with tf.train.MonitoredTrainingSession(
        server.target, FLAGS.task_index == 0, checkpoint_dir=FLAGS.run_dir, hooks=hooks, save_summaries_steps=None,
        save_summaries_secs=None,
    ) as sess:  # fmt: skip
        while not sess.should_stop():
            at, names, weights, clicks = rows(random)
            feeds = {places: at, ids_fed: names, weights_fed: weights, labels: clicks}
            losses.append(sess.run([loss, train_op], feeds)[0])
    if losses:
        print(f"losses {np.mean(losses[:3])} {np.mean(losses[-20:])}")
    if FLAGS.task_index == 0:
        _, _, step = tf.train.latest_checkpoint(FLAGS.run_dir).rpartition("-")
        print(f"step {step}")


if __name__ == "__main__":
    tf.app.run(main)
