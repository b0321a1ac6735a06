"""PS tasks that end by a queue which the workers fill when they are done, in place of `server.join()`.

As many programs of 2016 to 2019 do: one queue for each PS task, on it, shared by name; each worker puts an element into
each at its end, and the program of a PS task takes as many as there are workers.
"""

import numpy as np

import globalstep as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_string("session", "monitored", "One of 'monitored', 'supervisor', 'plain'")
flags.DEFINE_string("run_dir", None, "Where checkpoints are")
flags.DEFINE_integer("steps", 60, "Steps in all")
flags.DEFINE_boolean("fail", False, "Whether the last worker dies without having said that it is done")
FLAGS = flags.FLAGS


def create_done_queue(i, num_workers):
    """Queue used to signal death for i'th ps shard. Intended to have all workers enqueue an item onto it."""
    with tf.device(f"/job:ps/task:{i}"):
        return tf.FIFOQueue(num_workers, tf.int32, shared_name="done_queue" + str(i))


def run_ps(server, num_workers):
    queue = create_done_queue(FLAGS.task_index, num_workers)
    with tf.Session(server.target) as sess:
        for i in range(num_workers):
            sess.run(queue.dequeue())
            print(f"ps {FLAGS.task_index} received done {i}", flush=True)
    print(f"ps {FLAGS.task_index}: quitting", flush=True)


def train(sess, train_op, step, loss, x, y):
    rng = np.random.RandomState(FLAGS.task_index)
    losses, now = [], 0
    while now < FLAGS.steps and not getattr(sess, "should_stop", bool)():
        inputs = rng.rand(20, 4)
        _, now, found = sess.run([train_op, step, loss], {x: inputs, y: inputs.sum(1, keepdims=True)})
        losses.append(found)
    print(f"losses {losses[:1]} {losses[-1:]}", flush=True)


def main(_):
    ps_hosts, worker_hosts = FLAGS.ps_hosts.split(","), FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        run_ps(server, len(worker_hosts))
        return
    is_chief = FLAGS.task_index == 0
    mine = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=mine)):
        step = tf.train.get_or_create_global_step()
        x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
        w = tf.get_variable("w", [4, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        train_op = tf.train.GradientDescentOptimizer(0.3).minimize(loss, global_step=step)
        init = tf.global_variables_initializer()
    enqueues = [create_done_queue(i, len(worker_hosts)).enqueue(1) for i in range(len(ps_hosts))]
    if FLAGS.session == "monitored":
        last = FLAGS.fail and FLAGS.task_index == len(worker_hosts) - 1
        ops = [] if last else [tf.train.FinalOpsHook(enqueues)]
        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps), *ops]
        with tf.train.MonitoredTrainingSession(
            server.target, is_chief, checkpoint_dir=FLAGS.run_dir, hooks=hooks
        ) as sess:
            while not sess.should_stop():
                train(sess, train_op, step, loss, x, y)
        return
    if FLAGS.session == "supervisor":
        sv = tf.train.Supervisor(is_chief=is_chief, logdir=FLAGS.run_dir, init_op=init, global_step=step)
        with sv.managed_session(server.target) as sess:
            train(sess, train_op, step, loss, x, y)
            for op in enqueues:
                sess.run(op)
        sv.stop()
        return
    sess = tf.Session(server.target)
    if is_chief:
        sess.run(init)
    while sess.run(tf.report_uninitialized_variables()).size:
        pass
    train(sess, train_op, step, loss, x, y)
    for op in enqueues:
        sess.run(op)


if __name__ == "__main__":
    tf.app.run()
