"""A job of some steps with MonitoredTrainingSession; each worker says when it made its last one."""

import sys

import numpy as np

import globalstep as tf
from globalstep.runtime.clock import SYSTEM_CLOCK


def main(run_dir, last_step):
    cluster = tf.train.from_tf_config()
    if cluster.job == "ps":
        tf.train.Server().join()
    with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster)):
        step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None, 4])
        w = tf.get_variable("w", [4, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    random = np.random.default_rng(cluster.index)
    made = SYSTEM_CLOCK.monotonic()
    hooks = [tf.train.StopAtStepHook(last_step=int(last_step))]
    with tf.train.MonitoredTrainingSession(is_chief=cluster.is_chief, checkpoint_dir=run_dir, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train, feed_dict={x: random.normal(size=(8, 4))})
            made = SYSTEM_CLOCK.monotonic()
    print(f"last step at {made}")


if __name__ == "__main__":
    main(*sys.argv[1:])
