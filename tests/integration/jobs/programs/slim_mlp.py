"""A classifier of points written with slim: arg scopes, batch_norm, learning.train, and metrics of its checkpoint."""

import globalstep as tf
from globalstep.contrib import slim

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("steps", 100, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where checkpoints and events go")


def points(count):
    x = tf.random_uniform([count, 2], -1.0, 1.0)
    return x, tf.cast(tf.reduce_sum(x, 1) > 0.0, tf.int32)


def scope(is_training):
    with (
        slim.arg_scope(
            [slim.fully_connected],
            activation_fn=tf.nn.relu,
            normalizer_fn=slim.batch_norm,
            weights_regularizer=slim.l2_regularizer(1e-4),
        ),
        slim.arg_scope([slim.batch_norm], is_training=is_training, decay=0.9) as made,
    ):
        return made


def network(x, is_training):
    with slim.arg_scope(scope(is_training)):
        net = slim.stack(x, slim.fully_connected, [16, 8], scope="fc")
        return slim.fully_connected(net, 2, activation_fn=None, normalizer_fn=None, scope="logits")


def evaluate():
    with tf.Graph().as_default(), tf.Session() as sess:
        x, y = points(500)
        predictions = tf.argmax(network(x, is_training=False), 1)
        accuracy, update = tf.metrics.accuracy(y, predictions)
        sess.run(tf.local_variables_initializer())
        slim.assign_from_checkpoint_fn(tf.train.latest_checkpoint(FLAGS.run_dir), slim.get_variables_to_restore())(sess)
        for _ in range(4):
            sess.run(update)
        print(f"accuracy {sess.run(accuracy)}")


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return
    is_chief = FLAGS.task_index == 0
    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        x, y = points(64)
        slim.losses.softmax_cross_entropy(network(x, is_training=True), slim.one_hot_encoding(y, 2))
        total_loss = slim.losses.get_total_loss()
        tf.summary.scalar("total_loss", total_loss)
        global_step = slim.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.05, global_step, 100, 0.9)
        train_op = slim.learning.create_train_op(total_loss, tf.train.AdamOptimizer(rate), clip_gradient_norm=5.0)
    losses = []

    def train_step(sess, op, step, train_step_kwargs):
        loss, should_stop = slim.learning.train_step(sess, op, step, train_step_kwargs)
        losses.append(loss)
        return loss, should_stop

    slim.learning.train(
        train_op,
        FLAGS.run_dir,
        train_step,
        master=server.target,
        is_chief=is_chief,
        number_of_steps=FLAGS.steps,
        startup_delay_steps=0 if is_chief else 10,
        save_interval_secs=60,
    )
    if losses:
        print(f"losses {losses[0]} {sum(losses[-20:]) / len(losses[-20:])}")
    if is_chief:
        evaluate()


if __name__ == "__main__":
    tf.app.run()
