"""Learn embeddings of words from text, as word2vec does: skip-grams, and a loss over a few sampled words.

    globalstep launch --ps 2 --workers 3 examples/word2vec.py

The text is made here, and its structure is known: a sentence is about one topic, and takes its words from those of the
topic, frequent ones (Zipf's law) more often. So words of one topic have the same neighbours, and end near each other:
the chief counts how many of each word's nearest words are of its topic.

A step touches some hundred rows of the tables. Only these are pulled, and only their gradients, `gs.IndexedSlices`,
are pushed.
"""

import argparse
import os

import numpy as np

import globalstep as gs

TOPICS = ["sea", "kitchen", "music", "garden", "railway", "chess", "weather", "theatre", "desert", "harbour"]
WORDS_OF_TOPIC = 40
#: More frequent words have smaller ids, which the sampler of the loss counts on; so topics take turns.
VOCABULARY = [f"{topic}{rank}" for rank in range(WORDS_OF_TOPIC) for topic in TOPICS]
TOPIC = np.arange(len(VOCABULARY)) % len(TOPICS)

SENTENCE, WINDOW = 12, 2
SENTENCES_OF_BATCH = 16
SIZE = 32
SAMPLED = 32


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="global steps to train for")
    parser.add_argument("--run-dir", default=os.path.join("runs", "word2vec"), help="for checkpoints and summaries")
    return parser.parse_args()


def draw_skip_grams(random):
    """Give the words of some sentences, and for each of them one that is near it."""
    frequency = 1.0 / np.arange(1, WORDS_OF_TOPIC + 1)
    ranks = random.choice(WORDS_OF_TOPIC, size=[SENTENCES_OF_BATCH, SENTENCE], p=frequency / frequency.sum())
    words = ranks * len(TOPICS) + random.integers(len(TOPICS), size=[SENTENCES_OF_BATCH, 1])
    far = [far for far in range(-WINDOW, WINDOW + 1) if far]
    pairs = [(words[:, WINDOW:-WINDOW], words[:, WINDOW + by : SENTENCE - WINDOW + by]) for by in far]
    return tuple(np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))


def nearest(embeddings, count):
    """Give the nearest `count` words of each word, by the angle between them."""
    directions = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    likeness = directions @ directions.T
    np.fill_diagonal(likeness, -1.0)
    return np.argsort(-likeness, axis=1)[:, :count]


def main():
    arguments = parse_arguments()
    task = gs.train.from_tf_config()
    if task.job == "ps":
        gs.train.Server().join()
        return

    words = gs.placeholder(gs.int64, [None], name="words")
    near = gs.placeholder(gs.int64, [None], name="near")
    random = np.random.default_rng(5)
    at_first = random.uniform(-0.5, 0.5, [len(VOCABULARY), SIZE]).astype(np.float32)
    embeddings = gs.Variable(at_first, name="embeddings")
    nce_weights = gs.Variable(np.zeros([len(VOCABULARY), SIZE], np.float32), name="nce/weights")
    nce_biases = gs.Variable(np.zeros(len(VOCABULARY), np.float32), name="nce/biases")
    loss = gs.reduce_mean(
        gs.nn.nce_loss(
            weights=nce_weights,
            biases=nce_biases,
            labels=gs.expand_dims(near, 1),
            inputs=gs.nn.embedding_lookup(embeddings, words),
            num_sampled=SAMPLED,
            num_classes=len(VOCABULARY),
        )
    )
    global_step = gs.train.get_or_create_global_step()
    train_op = gs.train.AdagradOptimizer(0.5).minimize(loss, global_step=global_step)
    gs.summary.scalar("loss", loss)

    random = np.random.default_rng([task.index, task.is_chief])
    hooks = [gs.train.StopAtStepHook(last_step=arguments.steps)]
    with gs.train.MonitoredTrainingSession(checkpoint_dir=arguments.run_dir, hooks=hooks) as session:
        while not session.should_stop():
            batch, its_neighbours = draw_skip_grams(random)
            session.run(train_op, {words: batch, near: its_neighbours})

    if task.is_chief:
        # The parameter servers end with the job: the words are looked at in its last checkpoint.
        with gs.Session() as session:
            gs.train.Saver().restore(session, gs.train.latest_checkpoint(arguments.run_dir))
            found, step = session.run([embeddings, global_step])
        for name, values in (("at first", at_first), ("now", found)):
            of_its_topic = (TOPIC[nearest(values, 5)] == TOPIC[:, None]).mean()
            print(f"of the 5 nearest of each word, share that is of its topic, {name}: {of_its_topic:.3f}")
        for word in range(3):
            print(f"near {VOCABULARY[word]}: {', '.join(VOCABULARY[other] for other in nearest(found, 4)[word])}")
        print(f"final global step: {step}")


if __name__ == "__main__":
    main()
