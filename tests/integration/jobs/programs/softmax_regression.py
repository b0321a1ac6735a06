"""Softmax regression with the Supervisor's older entry, prepare_or_wait_for_session, and a writer on every worker."""

import argparse
import os

import numpy as np

import globalstep as tf

CLASSES, FEATURES = 4, 8


def batch(random, centres, size=64):
    labels = random.integers(CLASSES, size=size)
    return centres[labels] + random.normal(size=[size, FEATURES]), np.eye(CLASSES)[labels]


def main(arguments):
    cluster = tf.train.ClusterSpec({"ps": arguments.ps_hosts.split(","), "worker": arguments.worker_hosts.split(",")})
    config = tf.ConfigProto(allow_soft_placement=True, device_filters=["/job:ps"])
    server = tf.train.Server(cluster, arguments.job_name, arguments.task_index, config=config)
    if arguments.job_name == "ps":
        server.join()
        return

    setter = tf.train.replica_device_setter(
        worker_device=f"/job:worker/task:{arguments.task_index}/cpu:0", ps_device="/job:ps/cpu:0", cluster=cluster
    )
    with tf.device(setter):
        # As many programs make it: a float32, for lack of a dtype.
        global_step = tf.get_variable("global_step", [], initializer=tf.constant_initializer(0), trainable=False)
        with tf.name_scope("input"):
            x = tf.placeholder(tf.float32, shape=[None, FEATURES], name="x-input")
            labels = tf.placeholder(tf.float32, shape=[None, CLASSES], name="y-input")
        tf.set_random_seed(1)
        with tf.name_scope("weights"):
            weights = tf.Variable(tf.random_normal([FEATURES, CLASSES]))
        with tf.name_scope("biases"):
            biases = tf.Variable(tf.zeros([CLASSES]))
        with tf.name_scope("softmax"):
            y = tf.nn.softmax(tf.add(tf.matmul(x, weights), biases))
        with tf.name_scope("cross_entropy"):
            probabilities = tf.clip_by_value(y, 1e-10, 1.0)
            loss = tf.reduce_mean(-tf.reduce_sum(labels * tf.log(probabilities), reduction_indices=[1]))
        with tf.name_scope("train"):
            train_op = tf.train.AdagradOptimizer(0.5).minimize(loss, global_step=global_step)
        with tf.name_scope("Accuracy"):
            correct = tf.equal(tf.argmax(y, 1), tf.argmax(labels, 1))
            accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
        tf.summary.scalar("cost", loss)
        tf.summary.scalar("accuracy", accuracy)
        summary_op = tf.summary.merge_all()
        init_op = tf.global_variables_initializer()

    supervisor = tf.train.Supervisor(
        is_chief=arguments.task_index == 0, global_step=global_step, init_op=init_op, recovery_wait_secs=1
    )
    random = np.random.default_rng(arguments.task_index)
    centres = np.random.default_rng(7).normal(size=[CLASSES, FEATURES]) * 2
    losses = []
    with supervisor.prepare_or_wait_for_session(server.target, config=config) as sess:
        folder = os.path.join(arguments.run_dir, f"worker_{arguments.task_index}")
        writer = tf.summary.FileWriter(folder, graph=tf.get_default_graph())
        for _ in range(arguments.steps):
            inputs, targets = batch(random, centres)
            _, cost, summary, step = sess.run(
                [train_op, loss, summary_op, global_step], feed_dict={x: inputs, labels: targets}
            )
            writer.add_summary(summary, step)
            losses.append(cost)
        inputs, targets = batch(random, centres, 500)
        print("accuracy", sess.run(accuracy, feed_dict={x: inputs, labels: targets}))
        print(f"step {int(sess.run(global_step))} after {len(losses)} of its own")
        writer.close()
    supervisor.stop()
    print(f"losses {np.mean(losses[:3])} {np.mean(losses[-3:])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.register("type", "bool", lambda text: text.lower() == "true")
    parser.add_argument("--ps_hosts", type=str, default="")
    parser.add_argument("--worker_hosts", type=str, default="")
    parser.add_argument("--job_name", type=str, default="")
    parser.add_argument("--task_index", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--run_dir", type=str, default="")
    main(parser.parse_args())
