"""A line, as TensorFlow's own distributed test has it: `server.join()` without a return, a worker's code after it."""

import atexit
import sys

import numpy as np

import globalstep as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("last_step", 60, "Global step to stop at")
flags.DEFINE_string("around_join", "", "'except Exception', 'except', 'finally': what the program has around join")


def serve(server):
    try:
        server.join()
    except Exception:
        print("an error came out of join")
    except BaseException:
        if FLAGS.around_join != "except":
            raise
    finally:
        print("the end of serving")


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        atexit.register(print, "an atexit function")
        sys.stdout.reconfigure(line_buffering=False)
        serve(server)

    is_chief = FLAGS.task_index == 0
    print("from here on a worker's code" if FLAGS.job_name == "worker" else "the PS goes on as a worker")
    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        x = tf.placeholder(tf.float32, [None])
        slope = tf.Variable(0.0, name="slope")
        loss = tf.reduce_mean(tf.square(x * slope - x * 2.0))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=global_step)
    random = np.random.default_rng(FLAGS.task_index)
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.last_step)]
    with tf.train.MonitoredTrainingSession(server.target, is_chief=is_chief, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op, {x: random.normal(size=8)})
    if FLAGS.job_name == "worker":
        print("trained")
        server.join()
    print("join has returned")


if __name__ == "__main__":
    tf.app.run()
