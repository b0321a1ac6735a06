"""Ratings as products of user and item vectors, the tables cut over the PS; the cluster comes from TF_CONFIG."""

import sys

import numpy as np

import globalstep as tf

USERS, ITEMS, RANK, BATCH = 30, 20, 4, 64


def main(run_dir, last_step):
    task = tf.train.from_tf_config()
    server = tf.train.Server(task.cluster, job_name=task.job, task_index=task.index)
    if task.job == "ps":
        server.join()
        return

    taste = np.random.default_rng(11)
    ratings = taste.normal(size=[USERS, 2]) @ taste.normal(size=[2, ITEMS])
    worker = f"/job:worker/task:{task.index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=task.cluster)):
        user, item = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
        rating = tf.placeholder(tf.float32, [None])
        with tf.variable_scope("tables", initializer=tf.random_normal_initializer(stddev=0.5, seed=4)):
            users = tf.get_variable("users", [USERS, RANK], partitioner=tf.fixed_size_partitioner(2))
            items = tf.get_variable("items", [ITEMS, RANK])
            user_bias = tf.get_variable("user_bias", [USERS], initializer=tf.zeros_initializer())
        vectors = tf.nn.embedding_lookup(users, user, partition_strategy="div")
        predicted = tf.reduce_sum(vectors * tf.nn.embedding_lookup(items, item), 1) + tf.gather(user_bias, user)
        error = tf.reduce_mean(tf.squared_difference(predicted, rating), name="error")
        penalty = 1e-3 * (tf.nn.l2_loss(vectors) / BATCH)
        global_step = tf.train.get_or_create_global_step()
        train_op = tf.train.LazyAdamOptimizer(0.05).minimize(error + penalty, global_step=global_step)

    random = np.random.default_rng(task.index)
    losses = []
    scaffold = tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=1))
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=task.index == 0,
        checkpoint_dir=run_dir,
        scaffold=scaffold,
        save_checkpoint_steps=100,
        save_checkpoint_secs=None,
        hooks=[tf.train.StopAtStepHook(last_step=last_step)],
    ) as sess:
        while not sess.should_stop():
            u, i = random.integers(USERS, size=BATCH), random.integers(ITEMS, size=BATCH)
            losses.append(sess.run([error, train_op], {user: u, item: i, rating: ratings[u, i]})[0])
    if losses:
        print(f"losses {np.mean(losses[:3])} {np.mean(losses[-10:])}")
    if task.index == 0:
        step = tf.train.load_variable(run_dir, "global_step")
        print(f"step {step}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
