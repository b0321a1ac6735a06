"""Logistic regression whose gradient the program makes itself: IndexedSlices of the rows of a batch, by FTRL."""

import argparse
import sys

import numpy as np

import globalstep as tf

FEATURES, ACTIVE, BATCH = 200, 5, 32
FLAGS = None


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.train.get_or_create_global_step()
        ids = tf.placeholder(tf.int64, [BATCH, ACTIVE], name="ids")
        labels = tf.placeholder(tf.float32, [BATCH], name="labels")
        weights = tf.get_variable("weights", [FEATURES], initializer=tf.zeros_initializer())
        logits = tf.reduce_sum(tf.gather(weights, ids), 1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        # The gradient of the loss for each active weight of each row; rows that share one are summed up.
        excess = (tf.sigmoid(logits) - labels) / BATCH
        each = tf.reshape(tf.tile(tf.expand_dims(excess, 1), [1, ACTIVE]), [-1])
        gradient = tf.IndexedSlices(each, tf.reshape(ids, [-1]), dense_shape=tf.constant([FEATURES]))
        optimizer = tf.train.FtrlOptimizer(0.5, l1_regularization_strength=0.001)
        train_op = optimizer.apply_gradients([(gradient, weights)], global_step=global_step)

    truth = np.random.default_rng(3).normal(size=FEATURES) * 2
    random = np.random.default_rng(FLAGS.task_index)
    losses = []
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=(FLAGS.task_index == 0),
        checkpoint_dir=FLAGS.run_dir,
        hooks=[tf.train.StopAtStepHook(last_step=FLAGS.last_step)],
    ) as mon_sess:
        while not mon_sess.should_stop():
            chosen = random.integers(FEATURES, size=[BATCH, ACTIVE])
            feeds = {ids: chosen, labels: truth[chosen].sum(1) > 0}
            losses.append(mon_sess.run([loss, train_op], feed_dict=feeds)[0])
    if losses:
        print(f"losses {np.mean(losses[:3])} {np.mean(losses[-10:])}")
    if FLAGS.task_index == 0:
        step = tf.train.load_variable(FLAGS.run_dir, "global_step")
        print(f"step {step}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps_hosts", type=str, default="")
    parser.add_argument("--worker_hosts", type=str, default="")
    parser.add_argument("--job_name", type=str, default="")
    parser.add_argument("--task_index", type=int, default=0)
    parser.add_argument("--last_step", type=int, default=300)
    parser.add_argument("--run_dir", type=str, default="")
    FLAGS, unparsed = parser.parse_known_args()
    tf.app.run(main=main, argv=[sys.argv[0], *unparsed])
