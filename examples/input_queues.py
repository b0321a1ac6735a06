"""Train on the handwritten digits from files, read by threads: the input pipeline of a TensorFlow 1.x program.

    globalstep launch --ps 1 --workers 2 examples/input_queues.py

Each worker has threads that take file names from a queue, read records, parse them, and put the images into a queue
that shuffles; a step takes a batch from there, and needs no feed. The session starts the threads and ends them. At the
end the chief reads the test file, once, until its input is at its end.
"""

import argparse
import os

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import globalstep as gs

TRAINING_FILES = 4
BATCH_SIZE = 32


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="global steps to train for")
    parser.add_argument("--run-dir", default=os.path.join("runs", "input_queues"), help="for data and checkpoints")
    return parser.parse_args()


def write_files(folder):
    """Write the digits as record files; give the names of the training files, and that of the test file."""
    images, labels = load_digits(return_X_y=True)
    images, test_images, labels, test_labels = train_test_split(images, labels, test_size=0.25, random_state=7)
    parts = [(images[part::TRAINING_FILES], labels[part::TRAINING_FILES]) for part in range(TRAINING_FILES)]
    os.makedirs(folder, exist_ok=True)
    names = []
    for number, part in enumerate([*parts, (test_images, test_labels)]):
        names.append(os.path.join(folder, f"digits-{number}.tfrecord"))
        with gs.python_io.TFRecordWriter(names[-1]) as writer:
            for image, label in zip(*part, strict=True):
                pixels = gs.train.Feature(float_list=gs.train.FloatList(value=image / 16.0))
                digit = gs.train.Feature(int64_list=gs.train.Int64List(value=[label]))
                example = gs.train.Example(features=gs.train.Features(feature={"image": pixels, "label": digit}))
                writer.write(example.SerializeToString())
    return names[:-1], names[-1]


def read_example(names, num_epochs=None):
    """Give the image and the label of the next record."""
    files = gs.train.string_input_producer(names, num_epochs=num_epochs)
    _, record = gs.TFRecordReader().read(files)
    features = {"image": gs.FixedLenFeature([64], gs.float32), "label": gs.FixedLenFeature([], gs.int64)}
    example = gs.parse_single_example(record, features)
    return example["image"], example["label"]


def build_model(images):
    random = np.random.default_rng(7)
    weights = gs.Variable(random.normal(0, 0.1, [64, 10]).astype(np.float32), name="weights")
    biases = gs.Variable(np.zeros(10, np.float32), name="biases")
    return gs.matmul(images, weights) + biases


def train(arguments, task, names):
    images, labels = gs.train.shuffle_batch(
        read_example(names), batch_size=BATCH_SIZE, capacity=1000, min_after_dequeue=500, num_threads=2
    )
    logits = build_model(images)
    loss = gs.reduce_mean(gs.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    global_step = gs.train.get_or_create_global_step()
    train_op = gs.train.AdamOptimizer(0.01).minimize(loss, global_step=global_step)
    gs.summary.scalar("loss", loss)

    hooks = [gs.train.StopAtStepHook(last_step=arguments.steps)]
    with gs.train.MonitoredTrainingSession(checkpoint_dir=arguments.run_dir, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)


def evaluate(arguments, name):
    """Tell how many images of a file are recognized, by the last checkpoint."""
    read = correct = 0
    with gs.Graph().as_default(), gs.Session() as session:
        images, labels = gs.train.batch(
            read_example([name], num_epochs=1), batch_size=BATCH_SIZE, allow_smaller_final_batch=True
        )
        hits = gs.equal(gs.argmax(build_model(images), 1), labels)
        global_step = gs.train.get_or_create_global_step()
        gs.train.Saver().restore(session, gs.train.latest_checkpoint(arguments.run_dir))
        coordinator = gs.train.Coordinator()
        threads = gs.train.start_queue_runners(session, coordinator)
        try:
            while not coordinator.should_stop():
                found = session.run(hits)
                read, correct = read + len(found), correct + found.sum()
        except gs.errors.OutOfRangeError:
            coordinator.request_stop()  # the file was read to its end
        coordinator.join(threads)
        step = session.run(global_step)
    print(f"test images read: {read}")
    print(f"test accuracy: {correct / read:.4f}")
    print(f"final global step: {step}")


def main():
    arguments = parse_arguments()
    task = gs.train.from_tf_config()
    if task.job == "ps":
        gs.train.Server().join()
        return
    # Tasks on several machines have no folder in common; each makes files of its own here.
    data = os.path.join(arguments.run_dir, "data", f"{task.job or 'alone'}-{task.index}")
    training_names, test_name = write_files(data)
    train(arguments, task, training_names)
    if task.is_chief:
        evaluate(arguments, test_name)


if __name__ == "__main__":
    main()
