"""Train a small network on scikit-learn's handwritten digits, with every task running this one script.

    globalstep launch --ps 2 --workers 3 examples/digits.py

starts the tasks and gives each its TF_CONFIG. The chief evaluates the test images when the job is done. It
also runs alone, with a parameter server inside its own process: `python examples/digits.py`.
"""

import argparse
import os
import shutil
import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import globalstep as gs

BATCH_SIZE = 32
HIDDEN_UNITS = 64


def parse_arguments(description, name):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="global steps to train for")
    parser.add_argument("--run-dir", default=os.path.join("runs", name), help="for checkpoints and summaries")
    return parser.parse_args()


def load_data():
    """Give training and test images and labels; the split is the same in every process."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    return train_test_split(images, labels.astype(np.int64), test_size=0.25, random_state=7, stratify=labels)


def build_model():
    images = gs.placeholder(gs.float32, [None, 64], name="images")
    labels = gs.placeholder(gs.int64, [None], name="labels")
    random = np.random.default_rng(7)
    scale = np.sqrt(2.0 / 64)
    hidden_weights = gs.Variable(random.normal(0, scale, [64, HIDDEN_UNITS]).astype(np.float32), name="hidden/weights")
    hidden_biases = gs.Variable(np.zeros(HIDDEN_UNITS, np.float32), name="hidden/biases")
    weights = gs.Variable(random.normal(0, scale, [HIDDEN_UNITS, 10]).astype(np.float32), name="weights")
    biases = gs.Variable(np.zeros(10, np.float32), name="biases")
    hidden = gs.nn.relu(gs.matmul(images, hidden_weights) + hidden_biases)
    logits = gs.matmul(hidden, weights) + biases
    loss = gs.reduce_mean(gs.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = gs.reduce_mean(gs.cast(gs.equal(gs.argmax(logits, 1), labels), gs.float32))
    return images, labels, loss, accuracy


def command(name):
    """Give a command as it can be typed here, also where its folder is not on the PATH."""
    return name if shutil.which(name) else os.path.join(os.path.relpath(os.path.dirname(sys.executable)), name)


def main(build_model=build_model, description=__doc__, name="digits"):
    arguments = parse_arguments(description, name)
    task = gs.train.from_tf_config()
    if task.job == "ps":
        gs.train.Server().join()
        return

    train_images, test_images, train_labels, test_labels = load_data()
    images, labels, loss, accuracy = build_model()
    global_step = gs.train.get_or_create_global_step()
    rate = gs.train.exponential_decay(0.2, global_step, decay_steps=1000, decay_rate=0.7)
    train_op = gs.train.GradientDescentOptimizer(rate).minimize(loss, global_step=global_step)
    gs.summary.scalar("loss", loss)
    gs.summary.scalar("learning_rate", rate)

    # Each task draws its batches in an order of its own.
    random = np.random.default_rng([task.index, task.is_chief])
    hooks = [gs.train.StopAtStepHook(last_step=arguments.steps)]
    batches = 0
    with gs.train.MonitoredTrainingSession(checkpoint_dir=arguments.run_dir, hooks=hooks) as session:
        while not session.should_stop():
            batches += 1
            batch = random.integers(len(train_images), size=BATCH_SIZE)
            session.run(train_op, {images: train_images[batch], labels: train_labels[batch]})
    print(f"batches computed here: {batches}")

    if task.is_chief:
        # The parameter servers end with the job: the model is evaluated from its last checkpoint.
        with gs.Session() as session:
            gs.train.Saver().restore(session, gs.train.latest_checkpoint(arguments.run_dir))
            correct, step = session.run([accuracy, global_step], {images: test_images, labels: test_labels})
        print(f"test accuracy: {correct:.4f}")
        print(f"final global step: {step}")
        print(f"checkpoints: {command('globalstep')} checkpoint ls {arguments.run_dir}")
        print(f"curves: {command('tensorboard')} --logdir {arguments.run_dir}")


if __name__ == "__main__":
    main()
