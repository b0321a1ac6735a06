"""A network that reads TFRecords through queues: string_input_producer, a reader, shuffle_batch, QueueRunners."""

import os

import numpy as np

import globalstep as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("last_step", 300, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where records and checkpoints go")
FLAGS = flags.FLAGS

FEATURES, BATCH = 6, 32


def write_records(path):
    """Write labelled points of two clouds."""
    random = np.random.default_rng(FLAGS.task_index)
    with tf.python_io.TFRecordWriter(path) as writer:
        for _ in range(400):
            label = int(random.integers(2))
            point = random.normal(size=FEATURES) + 2 * label - 1
            features = tf.train.Features(
                feature={
                    "point": tf.train.Feature(float_list=tf.train.FloatList(value=point)),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
            )
            writer.write(tf.train.Example(features=features).SerializeToString())


def read_batches(path):
    filename_queue = tf.train.string_input_producer([path], shuffle=True, seed=1)
    _, serialized = tf.TFRecordReader().read(filename_queue)
    example = tf.parse_single_example(
        serialized,
        features={"point": tf.FixedLenFeature([FEATURES], tf.float32), "label": tf.FixedLenFeature([], tf.int64)},
    )
    return tf.train.shuffle_batch(
        [example["point"], example["label"]],
        batch_size=BATCH,
        num_threads=2,
        capacity=200 + 3 * BATCH,
        min_after_dequeue=200,
    )


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    tf.gfile.MakeDirs(FLAGS.run_dir)
    path = os.path.join(FLAGS.run_dir, f"points-{FLAGS.task_index}.tfrecords")
    write_records(path)
    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        points, labels = read_batches(path)
        weights_1 = tf.Variable(tf.truncated_normal([FEATURES, 16], stddev=0.3, seed=5), name="weights_1")
        biases_1 = tf.Variable(tf.zeros([16]), name="biases_1")
        hidden = tf.nn.relu(tf.nn.xw_plus_b(points, weights_1, biases_1))
        weights_2 = tf.Variable(tf.truncated_normal([16, 2], stddev=0.3, seed=6), name="weights_2")
        biases_2 = tf.Variable(tf.zeros([2]), name="biases_2")
        logits = tf.nn.xw_plus_b(hidden, weights_2, biases_2)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        loss += 1e-4 * tf.add_n([tf.nn.l2_loss(weights_1), tf.nn.l2_loss(weights_2)])
        global_step = tf.train.create_global_step()
        train_op = tf.train.MomentumOptimizer(0.02, 0.9).minimize(loss, global_step=global_step)
        accuracy = tf.reduce_mean(tf.to_float(tf.nn.in_top_k(logits, labels, 1)))

    losses = []
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=FLAGS.task_index == 0,
        checkpoint_dir=FLAGS.run_dir,
        hooks=[tf.train.StopAtStepHook(last_step=FLAGS.last_step)],
    ) as sess:
        while not sess.should_stop():
            _, value, right = sess.run([train_op, loss, accuracy])
            losses.append(value)
    if losses:
        print(f"losses {np.mean(losses[:3])} {np.mean(losses[-10:])}")
        print(f"accuracy {right}")
    if FLAGS.task_index == 0:
        step = tf.train.load_variable(FLAGS.run_dir, "global_step")
        print(f"step {step}")


if __name__ == "__main__":
    tf.app.run()
