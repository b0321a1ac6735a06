"""Workers of different speeds: each computes its gradient for as long as it is told, may leave early, or die."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

import globalstep as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_float("compute_secs", 0.01, "How long a gradient takes")
flags.DEFINE_bool("hiccups", False, "Whether one gradient in 20, by chance, takes ten times as long")
flags.DEFINE_integer("slow_task", -1, "The worker that is five times slower")
flags.DEFINE_integer("leaving_task", -1, "The worker that leaves after 20 runs")
flags.DEFINE_integer("dying_task", -1, "The worker that is killed after 10 runs")
flags.DEFINE_integer("last_step", 100, "Global step to stop at")
flags.DEFINE_float("secs", 0.0, "Or stop after so many seconds")
flags.DEFINE_string("run_dir", "", "Where checkpoints, events and the journal go")


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return
    secs = FLAGS.compute_secs * (5 if FLAGS.task_index == FLAGS.slow_task else 1)
    never, random = threading.Event(), np.random.default_rng(FLAGS.task_index)

    def gradient(values):
        never.wait(10 * secs if FLAGS.hiccups and random.random() < 0.05 else secs)
        return np.ones_like(values)

    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.train.get_or_create_global_step()
        total = tf.get_variable("total", [100], initializer=tf.zeros_initializer())
        other = tf.get_variable("other", [100], initializer=tf.zeros_initializer())
        pairs = [(tf.py_func(gradient, [total], tf.float32), total), (tf.ones_like(other), other)]
        train_op = tf.train.GradientDescentOptimizer(-1.0).apply_gradients(pairs, global_step=global_step)
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.last_step)]
    runs, longest = 0, 0.0
    with tf.train.MonitoredTrainingSession(
        master=server.target, is_chief=FLAGS.task_index == 0, checkpoint_dir=FLAGS.run_dir or None, hooks=hooks
    ) as sess:
        # All begin together.
        here = Path(FLAGS.run_dir, "here")
        here.mkdir(exist_ok=True)
        (here / str(FLAGS.task_index)).touch()
        while len(list(here.iterdir())) < len(FLAGS.worker_hosts.split(",")):
            never.wait(0.05)
        began = time.monotonic()
        while not sess.should_stop():
            before = time.monotonic()
            sess.run(train_op)
            runs, longest = runs + 1, max(longest, time.monotonic() - before)
            print(f"run {runs}", flush=True)
            if FLAGS.task_index == FLAGS.dying_task and runs == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            if (FLAGS.task_index == FLAGS.leaving_task and runs == 20) or 0 < FLAGS.secs < time.monotonic() - began:
                break
    print(f"worker {FLAGS.task_index} is done after {runs} runs; the longest took {longest:.2f} s", flush=True)


if __name__ == "__main__":
    tf.app.run()
