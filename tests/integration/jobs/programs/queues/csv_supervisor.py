"""Lines of CSV read through queues beside a Supervisor, by devices that the server's own definition names.

Style of programs of 2016: old names of functions, a Coordinator of the program's own besides the Supervisor's, an
average of the losses in summaries, and a second session on the same server that evaluates.
"""

import argparse
import os

import numpy as np

import globalstep as tf

COLUMNS, BATCH = 4, 16


def write_lines(path):
    random = np.random.default_rng(0)
    points = random.normal(size=[300, COLUMNS])
    targets = points @ np.arange(1.0, COLUMNS + 1) + 0.5
    with open(path, "w") as file:
        for target, point in zip(targets, points, strict=True):
            file.write(",".join(f"{value:.5f}" for value in (target, *point)) + "\n")


def read_batches(path):
    names = tf.train.string_input_producer([path])
    _, line = tf.TextLineReader().read(names)
    target, *columns = tf.decode_csv(line, record_defaults=[[0.0]] * (COLUMNS + 1))
    return tf.train.shuffle_batch(
        [tf.pack(columns), tf.pack([target])], batch_size=BATCH, capacity=200, min_after_dequeue=100
    )


def build(server, cluster, path):
    device = f"/job:{server.server_def.job_name}/task:{server.server_def.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        points, targets = read_batches(path)
        global_step = tf.Variable(0, name="global_step", trainable=False)
        with tf.variable_scope("linear"):
            with tf.device("/job:ps/task:0"):
                weights = tf.get_variable("weights", [COLUMNS, 1], initializer=tf.truncated_normal_initializer(0.1))
            with tf.device("/job:ps/task:1"):
                biases = tf.get_variable("biases", [1], initializer=tf.constant_initializer(0.0))
        linear = tf.nn.xw_plus_b(points, weights, biases)
        tf.add_to_collection("losses", tf.mul(tf.nn.l2_loss(weights), 1e-4))
        tf.add_to_collection("losses", tf.reduce_mean(tf.pow(linear - targets, 2)))
        loss = tf.add_n(tf.get_collection("losses"))
        averages = tf.train.ExponentialMovingAverage(0.9, name="avg")
        with tf.control_dependencies([averages.apply([loss])]):
            rate = tf.train.exponential_decay(0.1, global_step, 100, 0.9, staircase=True)
            optimizer = tf.train.AdamOptimizer(rate)
            gradients = optimizer.compute_gradients(loss)
        train_op = optimizer.apply_gradients(gradients, global_step=global_step)
        tf.scalar_summary("loss (average)", averages.average(loss))
        tf.histogram_summary(weights.op.name, weights)
        return global_step, loss, train_op, weights


def main(arguments):
    cluster = tf.train.ClusterSpec({"ps": arguments.ps_hosts.split(","), "worker": arguments.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=arguments.job_name, task_index=arguments.task_index)
    if arguments.job_name == "ps":
        server.join()
    os.makedirs(arguments.run_dir, exist_ok=True)
    path = os.path.join(arguments.run_dir, f"lines-{arguments.task_index}.csv")
    write_lines(path)
    global_step, loss, train_op, weights = build(server, cluster, path)
    supervisor = tf.train.Supervisor(
        is_chief=arguments.task_index == 0,
        logdir=os.path.join(arguments.run_dir, "logs"),
        init_op=tf.initialize_all_variables(),
        summary_op=tf.merge_all_summaries(),
        saver=tf.train.Saver(),
        global_step=global_step,
        save_model_secs=60,
    )
    losses, step = [], 0
    with supervisor.managed_session(server.target) as sess:
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coordinator)
        while not supervisor.should_stop() and step < arguments.last_step:
            _, cost, step = sess.run([train_op, loss, global_step])
            losses.append(cost)
        coordinator.request_stop()
        coordinator.join(threads)
        with tf.Session(server.target) as other:
            print("weights", *other.run(weights).reshape(-1))
    supervisor.stop()
    if losses:
        print(f"losses {np.mean(losses[:3])} {np.mean(losses[-3:])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps_hosts", default="")
    parser.add_argument("--worker_hosts", default="")
    parser.add_argument("--job_name", default="")
    parser.add_argument("--task_index", type=int, default=0)
    parser.add_argument("--last_step", type=int, default=200)
    parser.add_argument("--run_dir", default="")
    main(parser.parse_args())
