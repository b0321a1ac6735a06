"""A small network under MonitoredTrainingSession, with layers, dropout, averages, a decayed rate and hooks."""

import numpy as np

import globalstep as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("last_step", 300, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where checkpoints and events go")
flags.DEFINE_boolean("log_device_placement", False, "Accepted, as many programs have it")
FLAGS = flags.FLAGS


class LossHook(tf.train.SessionRunHook):
    """Keeps the loss of every run, as examples of TensorFlow do it."""

    def __init__(self, loss):
        self._loss = loss
        self.losses = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.losses.append(run_values.results)


def network(x, is_training):
    hidden = tf.layers.dense(x, 16, activation=tf.nn.relu, name="hidden")
    hidden = tf.layers.dropout(hidden, rate=0.1, training=is_training)
    return tf.squeeze(tf.layers.dense(hidden, 1, name="output"), [1])


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.contrib.framework.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None, 2])
        y = tf.placeholder(tf.float32, [None])
        is_training = tf.placeholder_with_default(True, [])
        with tf.variable_scope("mlp"):
            loss = tf.losses.mean_squared_error(y, network(x, is_training))
        rate = tf.train.exponential_decay(0.02, global_step, 100, 0.8, staircase=True)
        optimizer = tf.train.AdamOptimizer(rate)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        clipped, norm = tf.clip_by_global_norm(gradients, 5.0)
        apply_op = optimizer.apply_gradients(zip(clipped, variables, strict=True), global_step=global_step)
        averages = tf.train.ExponentialMovingAverage(0.9, global_step)
        with tf.control_dependencies([apply_op]):
            train_op = averages.apply(tf.trainable_variables())
        tf.summary.scalar("loss", loss)
        tf.summary.scalar("norm", norm)

    random = np.random.default_rng(FLAGS.task_index)
    kept = LossHook(loss)
    hooks = [
        tf.train.StopAtStepHook(last_step=FLAGS.last_step),
        tf.train.NanTensorHook(loss),
        tf.train.LoggingTensorHook({"loss": loss, "step": global_step}, every_n_iter=50),
        kept,
    ]
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=(FLAGS.task_index == 0),
        checkpoint_dir=FLAGS.run_dir,
        save_checkpoint_secs=60,
        save_summaries_steps=50,
        hooks=hooks,
        config=tf.ConfigProto(log_device_placement=FLAGS.log_device_placement),
    ) as mon_sess:
        while not mon_sess.should_stop():
            inputs = random.uniform(-1, 1, size=[32, 2])
            mon_sess.run(train_op, feed_dict={x: inputs, y: inputs[:, 0] * inputs[:, 1] * 4 + 1})
    if kept.losses:
        print(f"losses {np.mean(kept.losses[:3])} {np.mean(kept.losses[-10:])}")
    if FLAGS.task_index == 0:
        _, _, step = tf.train.latest_checkpoint(FLAGS.run_dir).rpartition("-")
        print(f"step {step}")


if __name__ == "__main__":
    tf.app.run()
