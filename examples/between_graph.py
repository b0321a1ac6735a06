"""The canonical between-graph trainer of TensorFlow 1.x: every process builds the graph, Variables lie on the PS.

Type each line in a shell of its own, in any order; the job ends when global_step is at --last_step:

    A="--ps_hosts=localhost:2220,localhost:2221 --worker_hosts=localhost:2230,localhost:2231,localhost:2232"
    python examples/between_graph.py $A --job_name=ps --task_index=0
    python examples/between_graph.py $A --job_name=ps --task_index=1
    python examples/between_graph.py $A --job_name=worker --task_index=0
    python examples/between_graph.py $A --job_name=worker --task_index=1
    python examples/between_graph.py $A --job_name=worker --task_index=2

All five end with exit code 0, and the last checkpoint in --checkpoint_dir is model.ckpt-<last_step>. With
--sync_replicas on each line a step is the mean of all workers' gradients.
"""

import os

import numpy as np

import globalstep as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("last_step", 1000, "Global step to stop at")
flags.DEFINE_boolean("sync_replicas", False, "Whether all workers make each step together")
flags.DEFINE_string("checkpoint_dir", os.path.join("runs", "between_graph"), "Where to save checkpoints")
FLAGS = flags.FLAGS

TRUE_WEIGHTS = np.array([[1.0], [-2.0], [3.0]], np.float32)


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    is_chief = FLAGS.task_index == 0
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.last_step)]
    worker_device = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker_device, cluster=cluster)):
        x = tf.placeholder(tf.float32, [None, 3])
        y = tf.placeholder(tf.float32, [None, 1])
        weights = tf.Variable(tf.zeros([3, 1]), name="weights")
        bias = tf.Variable(tf.zeros([1]), name="bias")
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) + bias - y))
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(0.05)
        if FLAGS.sync_replicas:
            workers = cluster.num_tasks("worker")
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, workers, total_num_replicas=workers)
            hooks.append(optimizer.make_session_run_hook(is_chief))
        train_op = optimizer.minimize(loss, global_step=global_step)

    random = np.random.default_rng(FLAGS.task_index)
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        checkpoint_dir=FLAGS.checkpoint_dir,
        hooks=hooks,
    ) as mon_sess:
        last_loss = None
        while not mon_sess.should_stop():
            inputs = random.normal(size=[16, 3]).astype(np.float32)
            feeds = {x: inputs, y: inputs @ TRUE_WEIGHTS + 0.5}
            _, last_loss = mon_sess.run([train_op, loss], feed_dict=feeds)
    print(f"worker {FLAGS.task_index} is done; its last loss is {last_loss}")


if __name__ == "__main__":
    tf.app.run()
