"""An LSTM language model: cells in rows with dropout, sequences of several lengths, a loop that writes sentences."""

import numpy as np

import globalstep as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("last_step", 150, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where checkpoints and events go")
FLAGS = flags.FLAGS

WORDS, UNITS, STEPS, BATCH = 11, 24, 12, 16


def lstm_cell(keep_prob):
    cell = tf.contrib.rnn.BasicLSTMCell(UNITS, forget_bias=0.0, state_is_tuple=True)
    return tf.contrib.rnn.DropoutWrapper(cell, output_keep_prob=keep_prob)


def batch(random):
    """Sentences that count on by 1, 2 or 3, modulo the number of words."""
    start, by = random.integers(0, WORDS, BATCH), random.integers(1, 4, BATCH)
    text = (start[:, None] + by[:, None] * np.arange(STEPS + 1)) % WORDS
    return text[:, :-1], text[:, 1:], random.integers(4, STEPS + 1, BATCH)


def continued(cell, embedding, weights, bias, state, word, count):
    """Words that the model says come after `word`."""

    def body(at, word, state, written):
        with tf.variable_scope("rnn", reuse=True):
            output, state = cell(tf.nn.embedding_lookup(embedding, word), state)
        word = tf.cast(tf.argmax(tf.matmul(output, weights) + bias, 1), tf.int32)
        return at + 1, word, state, written.write(at, word)

    first = tf.constant(0), word, state, tf.TensorArray(tf.int32, size=count)
    return tf.while_loop(lambda at, *_: at < count, body, first)[-1].stack()


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.train.get_or_create_global_step()
        words, targets = tf.placeholder(tf.int32, [BATCH, STEPS]), tf.placeholder(tf.int32, [BATCH, STEPS])
        lengths = tf.placeholder(tf.int32, [BATCH])
        keep_prob = tf.placeholder_with_default(0.9, [])
        embedding = tf.get_variable("embedding", [WORDS, UNITS])
        cell = tf.contrib.rnn.MultiRNNCell([lstm_cell(keep_prob) for _ in range(2)])
        outputs, _ = tf.nn.dynamic_rnn(
            cell, tf.nn.embedding_lookup(embedding, words), sequence_length=lengths, dtype=tf.float32
        )
        weights, bias = tf.get_variable("softmax_w", [UNITS, WORDS]), tf.get_variable("softmax_b", [WORDS])
        logits = tf.reshape(tf.matmul(tf.reshape(outputs, [-1, UNITS]), weights) + bias, [BATCH, STEPS, WORDS])
        mask = tf.sequence_mask(lengths, STEPS, dtype=tf.float32)
        loss = tf.contrib.seq2seq.sequence_loss(logits, targets, mask)
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, tf.trainable_variables()), 5.0)
        train_op = tf.train.AdamOptimizer(0.02).apply_gradients(
            zip(gradients, tf.trainable_variables(), strict=True), global_step=global_step
        )
        last_word = tf.reduce_sum(words * tf.one_hot(lengths - 1, STEPS, dtype=tf.int32), 1)
        sentence = continued(cell, embedding, weights, bias, cell.zero_state(BATCH, tf.float32), last_word, 5)

    random = np.random.default_rng(FLAGS.task_index)
    losses = []
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=(FLAGS.task_index == 0),
        checkpoint_dir=FLAGS.run_dir,
        hooks=[tf.train.StopAtStepHook(last_step=FLAGS.last_step)],
    ) as mon_sess:
        while not mon_sess.should_stop():
            feed = dict(zip((words, targets, lengths), batch(random), strict=True))
            if not losses:
                assert mon_sess.run(sentence, {**feed, keep_prob: 1.0}).shape == (5, BATCH)
            value, _ = mon_sess.run([loss, train_op], feed)
            losses.append(value)
    if losses:
        print(f"losses {np.mean(losses[:3])} {np.mean(losses[-10:])}")
    if FLAGS.task_index == 0:
        _, _, step = tf.train.latest_checkpoint(FLAGS.run_dir).rpartition("-")
        print(f"step {step}")


if __name__ == "__main__":
    tf.app.run()
