"""Servers are there already, one process for each task; clients name the server of their worker and have none."""

import numpy as np

import globalstep as tf

FLAGS = tf.app.flags.FLAGS
tf.flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
tf.flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
tf.flags.DEFINE_string("job_name", "", "ps or worker; a client is none of them")
tf.flags.DEFINE_integer("task_index", 0, "Index within the job, or of the worker whose server a client uses")
tf.flags.DEFINE_integer("steps", 60, "Global step to stop at")
tf.flags.DEFINE_string("run_dir", "", "Where checkpoints and events go")


def main(_):
    workers = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": workers})
    if FLAGS.job_name:
        tf.logging.set_verbosity(tf.logging.INFO)
        tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index).join()
    device = f"/job:worker/task:{FLAGS.task_index}/cpu:0"
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        step = tf.Variable(0, name="global_step", trainable=False)
        x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
        slope = tf.Variable(0.0)
        loss = tf.reduce_mean(tf.square(x * slope - y))
        train_op = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=step)
        init_op = tf.global_variables_initializer()
    supervisor = tf.train.Supervisor(
        is_chief=FLAGS.task_index == 0, logdir=FLAGS.run_dir, init_op=init_op, global_step=step, recovery_wait_secs=1
    )
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    session = supervisor.prepare_or_wait_for_session("grpc://" + workers[FLAGS.task_index], config=config)
    random = np.random.RandomState(FLAGS.task_index)
    losses, now = [], 0
    while now < FLAGS.steps:
        inputs = random.normal(size=32)
        value, now, _ = session.run([loss, step, train_op], {x: inputs, y: 3.0 * inputs})
        losses.append(value)
    session.close()
    supervisor.stop()
    print(f"losses {losses[0]} {losses[-1]}")


if __name__ == "__main__":
    tf.app.run()
