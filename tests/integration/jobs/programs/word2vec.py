"""Skip-gram embeddings with noise-contrastive estimation; the cluster comes from TF_CONFIG."""

import json
import os
import sys

import numpy as np

import globalstep.compat.v1 as tf

tf.disable_v2_behavior()

VOCABULARY, DIMENSIONS, SAMPLED, BATCH = 64, 16, 8, 64


def skip_grams(random, size):
    """Words that follow each other in a made-up language where every word has a few neighbours."""
    words = random.integers(VOCABULARY, size=size)
    return words, ((words + random.integers(1, 3, size=size)) % VOCABULARY)[:, None]


def main(run_dir, last_step):
    settings = json.loads(os.environ["TF_CONFIG"])
    job, index = settings["task"]["type"], settings["task"]["index"]
    cluster = tf.train.ClusterSpec(settings["cluster"])
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()
        return

    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        centre = tf.placeholder(tf.int32, [BATCH])
        context = tf.placeholder(tf.int64, [BATCH, 1])
        embeddings = tf.get_variable(
            "embeddings",
            [VOCABULARY, DIMENSIONS],
            initializer=tf.random_uniform_initializer(-1.0, 1.0, seed=1),
            partitioner=tf.fixed_size_partitioner(cluster.num_tasks("ps")),
        )
        nce_weights = tf.get_variable(
            "nce_weights",
            [VOCABULARY, DIMENSIONS],
            initializer=tf.truncated_normal_initializer(stddev=1.0 / np.sqrt(DIMENSIONS), seed=2),
        )
        nce_biases = tf.get_variable("nce_biases", [VOCABULARY], initializer=tf.zeros_initializer())
        embedded = tf.nn.embedding_lookup(embeddings, centre, partition_strategy="div")
        loss = tf.reduce_mean(
            tf.nn.nce_loss(
                weights=nce_weights,
                biases=nce_biases,
                labels=context,
                inputs=embedded,
                num_sampled=SAMPLED,
                num_classes=VOCABULARY,
            )
        )
        global_step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdagradOptimizer(0.5).minimize(loss, global_step=global_step)
        tf.summary.scalar("nce_loss", loss)

    random = np.random.default_rng(index)
    losses = []
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=index == 0,
        checkpoint_dir=run_dir,
        hooks=[tf.train.StopAtStepHook(last_step=last_step)],
    ) as sess:
        while not sess.should_stop():
            words, contexts = skip_grams(random, BATCH)
            _, value = sess.run([train_op, loss], {centre: words, context: contexts})
            losses.append(value)
    if losses:
        print(f"losses {np.mean(losses[:3])} {np.mean(losses[-10:])}")
    if index == 0:
        step = tf.train.load_variable(run_dir, "global_step")
        print(f"step {step}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
