"""A line, by peers without a job "ps": the Variables lie on the first worker, whose server the others reach."""

import numpy as np

import globalstep as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("hosts", "", "Comma-separated host:port of all tasks")
flags.DEFINE_string("job", "worker", "The only job's name")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("last_step", 150, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where checkpoints go")


def main(_):
    cluster = tf.train.ClusterSpec({FLAGS.job: FLAGS.hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job, task_index=FLAGS.task_index)
    with tf.device(f"/job:{FLAGS.job}/task:0"):
        global_step = tf.train.get_or_create_global_step()
        slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
    with tf.device(f"/job:{FLAGS.job}/task:{FLAGS.task_index}"):
        x = tf.placeholder(tf.float32, [None])
        loss = tf.reduce_mean(tf.square(x * slope - x * 2.0))
        train_op = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=global_step)
    random = np.random.default_rng(FLAGS.task_index)
    # A peer that comes when the others have taken the last step takes none.
    value = None
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=FLAGS.task_index == 0,
        hooks=[tf.train.StopAtStepHook(last_step=FLAGS.last_step)],
        checkpoint_dir=FLAGS.run_dir,
    ) as session:
        while not session.should_stop():
            value, _ = session.run([loss, train_op], {x: random.normal(size=16)})
    print("loss", value)


if __name__ == "__main__":
    tf.app.run()
