"""Softmax regression as public programs' replicas train: a Supervisor, a loop that breaks, no close and no stop."""

import numpy as np

import globalstep as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("train_steps", 200, "Global step after which a worker breaks its loop")
flags.DEFINE_string("ending", "return", "How a worker ends: return or crash")


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    is_chief = FLAGS.task_index == 0
    with tf.device(
        tf.train.replica_device_setter(worker_device=f"/job:worker/task:{FLAGS.task_index}", cluster=cluster)
    ):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        weights = tf.Variable(tf.truncated_normal([8, 3], stddev=0.1, seed=1), name="weights")
        bias = tf.Variable(tf.zeros([3]), name="bias")
        x = tf.placeholder(tf.float32, [None, 8])
        y_ = tf.placeholder(tf.float32, [None, 3])
        y = tf.nn.softmax(tf.nn.xw_plus_b(x, weights, bias))
        cross_entropy = -tf.reduce_sum(y_ * tf.log(tf.clip_by_value(y, 1e-10, 1.0)))
        train_step = tf.train.AdamOptimizer(0.01).minimize(cross_entropy, global_step=global_step)
        init_op = tf.global_variables_initializer()

    sv = tf.train.Supervisor(is_chief=is_chief, init_op=init_op, recovery_wait_secs=1, global_step=global_step)
    print(f"Worker {FLAGS.task_index}: Waiting for session to be initialized...")
    sess = sv.prepare_or_wait_for_session(server.target, config=tf.ConfigProto(allow_soft_placement=True))
    print(f"Worker {FLAGS.task_index}: Session initialization complete.")

    random = np.random.default_rng(FLAGS.task_index)
    local_step = 0
    while True:
        inputs = random.normal(size=(20, 8))
        labels = np.eye(3)[np.argmax(inputs[:, :3], axis=1)]
        _, step = sess.run([train_step, global_step], feed_dict={x: inputs, y_: labels})
        local_step += 1
        if FLAGS.ending == "crash" and local_step == 20:
            raise RuntimeError("a bug of the program")
        if step >= FLAGS.train_steps:
            break
    print(f"Worker {FLAGS.task_index}: training ends after {local_step} local steps (global step: {step})")


if __name__ == "__main__":
    tf.app.run()
