"""Actors that feed a learner through a queue which all share, in the style of IMPALA: worker 0 learns, the others act.

Each element bears the actor's process and a count, by which the learner sees whether one is missing or came twice.
"""

import os

import numpy as np

import globalstep as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 400, "Steps in all")
FLAGS = flags.FLAGS

BATCH = 4


def learn(server, queue, w, step):
    life, count, inputs = queue.dequeue_many(BATCH)
    loss = tf.reduce_mean(tf.square(tf.matmul(inputs, w) - tf.reduce_sum(inputs, 1, keepdims=True)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    seen, losses = {}, []
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(server.target, is_chief=True, hooks=hooks) as sess:
        while not sess.should_stop():
            _, lives, counts, found, now = sess.run([train_op, life, count, loss, step])
            losses.append(found)
            for one, number in zip(lives.tolist(), counts.tolist(), strict=True):
                assert number == seen.get(one, -1) + 1, (one, number, seen)
                seen[one] = number
            if len(losses) % 50 == 0:
                print(f"learned {now} from {len(seen)} actors", flush=True)
    print(f"losses {losses[0]} {losses[-1]}", flush=True)
    print(f"taken {sum(number + 1 for number in seen.values())} of {len(seen)} actors", flush=True)


def act(server, queue, w):
    inputs, number = tf.placeholder(tf.float32, [3]), tf.placeholder(tf.int64, [])
    # An actor looks at the net, too: its policy.
    policy = tf.reduce_sum(w)
    put = queue.enqueue([tf.constant(os.getpid(), tf.int64), number, inputs])
    random, count = np.random.default_rng(os.getpid()), 0
    with tf.train.MonitoredTrainingSession(server.target, is_chief=False) as sess:
        while not sess.should_stop():
            sess.run(policy)
            if sess.should_stop():
                break
            sess.run(put, {inputs: random.random(3), number: count})
            count += 1
            if count == 10:
                print("acts", flush=True)
    print(f"acted {count} times", flush=True)


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
    with tf.device("/job:worker/task:0"):
        types, shapes = [tf.int64, tf.int64, tf.float32], [[], [], [3]]
        queue = tf.FIFOQueue(2 * BATCH, types, shapes, shared_name="experience")
    if FLAGS.task_index == 0:
        learn(server, queue, w, step)
    else:
        act(server, queue, w)


if __name__ == "__main__":
    tf.app.run()
