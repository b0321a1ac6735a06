"""A tutorial's trainer as it was published: `import tensorflow`, MNIST's reader, paths of TensorFlow's own modules."""

import os

import tensorflow as tf
from tensorflow.contrib.framework.python.ops import variables as framework_variables
from tensorflow.core.protobuf import config_pb2
from tensorflow.examples.tutorials.mnist import input_data
from tensorflow.python.client import timeline
from tensorflow.python.framework import ops
from tensorflow.python.platform import gfile

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_string("data_dir", "", "Where MNIST's files are")
flags.DEFINE_string("log_dir", "", "Where checkpoints and the trace go")
flags.DEFINE_integer("train_steps", 100, "Global step to stop at")
FLAGS = flags.FLAGS


def main(_):
    mnist = input_data.read_data_sets(FLAGS.data_dir, one_hot=True, validation_size=100)
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    is_chief = FLAGS.task_index == 0
    if is_chief and not gfile.Exists(FLAGS.log_dir):
        gfile.MakeDirs(FLAGS.log_dir)
    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = framework_variables.get_or_create_global_step()
        images = tf.placeholder(tf.float32, [None, 784])
        labels = tf.placeholder(tf.float32, [None, 10])
        hidden = tf.layers.dense(images, 32, activation=tf.nn.relu)
        logits = tf.layers.dense(hidden, 10)
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=global_step)
    assert isinstance(ops.convert_to_tensor(loss), ops.Tensor)

    losses = []
    options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE)
    metadata = config_pb2.RunMetadata()
    config = config_pb2.ConfigProto(allow_soft_placement=True, device_filters=["/job:ps", worker])
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.train_steps)]
    with tf.train.MonitoredTrainingSession(
        master=server.target, is_chief=is_chief, checkpoint_dir=FLAGS.log_dir, hooks=hooks, config=config
    ) as session:
        while not session.should_stop():
            batch_images, batch_labels = mnist.train.next_batch(32)
            feeds = {images: batch_images, labels: batch_labels}
            _, value = session.run([train_op, loss], feeds, options=options, run_metadata=metadata)
            losses.append(value)
    if losses:
        print(f"losses {losses[0]} {losses[-1]}")
        with gfile.GFile(os.path.join(FLAGS.log_dir, f"timeline-{FLAGS.task_index}.json"), "w") as file:
            file.write(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format())


if __name__ == "__main__":
    tf.app.run()
