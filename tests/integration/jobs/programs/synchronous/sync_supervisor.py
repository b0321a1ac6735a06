"""A line through noisy points in synchronous steps, with Supervisor, queue runner and tokens by hand."""

import numpy as np

import globalstep as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
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
        global_step = tf.Variable(0, name="global_step", trainable=False)
        x = tf.placeholder(tf.float32, [None])
        y = tf.placeholder(tf.float32, [None])
        slope = tf.Variable(0.0, name="slope")
        offset = tf.Variable(0.0, name="offset")
        loss = tf.reduce_mean(tf.square(x * slope + offset - y))
        opt = tf.train.GradientDescentOptimizer(0.1)
        opt = tf.train.SyncReplicasOptimizer(
            opt, replicas_to_aggregate=num_workers, total_num_replicas=num_workers, name="line_sync_replicas"
        )
        train_step = opt.minimize(loss, global_step=global_step)
        local_init_op = opt.local_step_init_op
        if is_chief:
            local_init_op = opt.chief_init_op
        ready_for_local_init_op = opt.ready_for_local_init_op
        chief_queue_runner = opt.get_chief_queue_runner()
        sync_init_op = opt.get_init_tokens_op()
        init_op = tf.global_variables_initializer()

    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=FLAGS.run_dir,
        init_op=init_op,
        local_init_op=local_init_op,
        ready_for_local_init_op=ready_for_local_init_op,
        recovery_wait_secs=1,
        global_step=global_step,
    )
    sess = supervisor.prepare_or_wait_for_session(server.target)
    if is_chief:
        sess.run(sync_init_op)
        supervisor.start_queue_runners(sess, [chief_queue_runner])
    random = np.random.default_rng(FLAGS.task_index)
    local_step = 0
    while True:
        inputs = random.normal(size=32)
        _, step = sess.run([train_step, global_step], {x: inputs, y: 2.0 * inputs + 10.0})
        local_step += 1
        if step >= FLAGS.last_step:
            break
    found = sess.run([slope, offset])
    print(f"worker {FLAGS.task_index}: step {step} after {local_step} runs: {found[0]:.3f} {found[1]:.3f}", flush=True)
    supervisor.stop()


if __name__ == "__main__":
    tf.app.run()
