"""Softmax regression in synchronous steps: SyncReplicasOptimizer, MonitoredTrainingSession and its hook."""

import numpy as np

import globalstep as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_integer("replicas_to_aggregate", None, "How many gradients make a step; default all workers")
flags.DEFINE_integer("last_step", 100, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where checkpoints and events go")


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return
    is_chief = FLAGS.task_index == 0
    num_workers = len(FLAGS.worker_hosts.split(","))
    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.train.get_or_create_global_step()
        images = tf.placeholder(tf.float32, [None, 20])
        labels = tf.placeholder(tf.int64, [None])
        weights = tf.get_variable("weights", [20, 5], initializer=tf.zeros_initializer())
        biases = tf.get_variable("biases", [5], initializer=tf.zeros_initializer())
        logits = tf.matmul(images, weights) + biases
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        rate = tf.train.exponential_decay(0.05, global_step, 50, 0.9)
        opt = tf.train.SyncReplicasOptimizer(
            tf.train.AdamOptimizer(rate),
            replicas_to_aggregate=FLAGS.replicas_to_aggregate or num_workers,
            total_num_replicas=num_workers,
        )
        train_op = opt.minimize(loss, global_step=global_step)
    hooks = [opt.make_session_run_hook(is_chief), tf.train.StopAtStepHook(last_step=FLAGS.last_step)]
    truth = np.random.default_rng(7).normal(size=(20, 5))
    random = np.random.default_rng(FLAGS.task_index)
    runs, losses = 0, []
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        checkpoint_dir=FLAGS.run_dir or None,
        hooks=hooks,
        log_step_count_steps=10,
    ) as sess:
        while not sess.should_stop():
            batch = random.normal(size=(32, 20))
            value, step = sess.run([loss, train_op], {images: batch, labels: (batch @ truth).argmax(1)})
            runs += 1
            losses.append(value)
            print(f"run {runs} made step {step}", flush=True)
    print(f"worker {FLAGS.task_index} is done after {runs} runs: losses {losses[:1] + losses[-1:]}", flush=True)


if __name__ == "__main__":
    tf.app.run()
