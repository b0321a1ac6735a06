"""A line through noisy points, with the Supervisor and the names of TensorFlow 0.x."""

import numpy as np

import globalstep as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("steps", 100, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where checkpoints and events go")


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return
    is_chief = FLAGS.task_index == 0
    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        x = tf.placeholder("float", [None])
        y = tf.placeholder("float", [None])
        slope = tf.get_variable("slope", [1], tf.float32, initializer=tf.zeros_initializer())
        offset = tf.get_variable("offset", [1], tf.float32, initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.sub(tf.mul(x, slope) + offset, y)))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=global_step)
        tf.scalar_summary("loss", loss)
        summary_op = tf.merge_all_summaries()
        init_op = tf.initialize_all_variables()
        saver = tf.train.Saver()

    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=FLAGS.run_dir,
        init_op=init_op,
        summary_op=None,
        saver=saver,
        global_step=global_step,
        save_model_secs=60,
        recovery_wait_secs=1,
    )
    random = np.random.default_rng(FLAGS.task_index)
    losses = []
    with supervisor.managed_session(server.target) as sess:
        step = 0
        while not supervisor.should_stop() and step < FLAGS.steps:
            inputs = random.normal(size=32)
            feeds = {x: inputs, y: 2.0 * inputs + 10.0 + random.normal(size=32) * 0.3}
            value, summary, step, _ = sess.run([loss, summary_op, global_step, train_op], feed_dict=feeds)
            losses.append(value)
            if is_chief and len(losses) % 25 == 0:
                supervisor.summary_computed(sess, summary)
        print(f"step {int(sess.run(global_step))} after {len(losses)} of its own")
    supervisor.stop()
    print(f"losses {np.mean(losses[:3])} {np.mean(losses[-3:])}")


if __name__ == "__main__":
    tf.app.run()
