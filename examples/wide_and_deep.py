"""Train a wide-and-deep model of clicks, whose tables have a million ids, on data that are made here.

    globalstep launch --ps 2 --workers 3 examples/wide_and_deep.py

An example has one id of each of four kinds: a user, an article, a site, a search. Few ids are frequent and most are
rare (a power law), and whether there is a click depends on a weight of each id, and on how the user's taste agrees with
the article. The wide part of the model has a weight for each id, trained by FTRL; the deep part has a vector for each,
with a network on top, trained by Adagrad: two optimizers, and one push that moves the one `global_step`.

Each table lies in parts on both parameter servers. A batch touches some thousand rows; the rows of the next batch
come back with the push of the present one. At the end the chief tells the AUC on examples that nobody trained on.
"""

import argparse
import os

import numpy as np
from sklearn.metrics import roc_auc_score

import globalstep as gs

IDS = 1_000_000
#: Ids of a kind; the kinds follow each other in the tables.
KINDS = 4
IDS_OF_KIND = IDS // KINDS
SIZE = 8
HIDDEN_UNITS = 32
BATCH_SIZE = 512
PARTS = 2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="global steps to train for")
    parser.add_argument("--run-dir", default=os.path.join("runs", "wide_and_deep"), help="for checkpoints and curves")
    return parser.parse_args()


class Clicks:
    """Examples by the bucket; what is true of an id is the same in every process."""

    def __init__(self):
        random = np.random.default_rng(1)
        self._weights = random.normal(0, 1.0, IDS)
        self._tastes = random.normal(0, 1.0, [IDS, 2])

    def draw(self, random, count):
        """Give ids [count, KINDS], and for each example whether there was a click, 0.0 or 1.0."""
        # A power law: half of all examples have one of some twenty ids, and the other half any of 250,000.
        ranks = (1 - random.random([count, KINDS]) * (1 - IDS_OF_KIND**-0.2)) ** -5
        ids = ranks.astype(np.int64) - 1 + np.arange(KINDS) * IDS_OF_KIND
        agreement = (self._tastes[ids[:, 0]] * self._tastes[ids[:, 1]]).sum(axis=1)
        score = self._weights[ids].sum(axis=1) + 1.5 * agreement - 1.0
        clicked = random.random(count) < 1 / (1 + np.exp(-score))
        return ids, clicked.astype(np.float32)


def build_model():
    """Give the placeholders, the logits, the loss, and the Variables of the wide and of the deep part."""
    ids = gs.placeholder(gs.int64, [None, KINDS], name="ids")
    clicked = gs.placeholder(gs.float32, [None], name="clicked")
    in_parts = gs.fixed_size_partitioner(PARTS)
    with gs.variable_scope("wide"):
        weights = gs.get_variable("weights", [IDS, 1], initializer=gs.zeros_initializer(), partitioner=in_parts)
        bias = gs.get_variable("bias", [], initializer=gs.zeros_initializer())
    with gs.variable_scope("deep"):
        small = gs.random_uniform_initializer(-0.3, 0.3)
        table = gs.get_variable("table", [IDS, SIZE], initializer=small, partitioner=in_parts)
        first = gs.get_variable("first", [KINDS * SIZE, HIDDEN_UNITS])
        first_bias = gs.get_variable("first_bias", [HIDDEN_UNITS], initializer=gs.zeros_initializer())
        last = gs.get_variable("last", [HIDDEN_UNITS, 1])
    wide = gs.reduce_sum(gs.nn.embedding_lookup(weights, ids), axis=[1, 2]) + bias
    vectors = gs.reshape(gs.nn.embedding_lookup(table, ids), [-1, KINDS * SIZE])
    deep = gs.matmul(gs.nn.relu(gs.matmul(vectors, first) + first_bias), last)
    logits = wide + gs.squeeze(deep, [1])
    loss = gs.reduce_mean(gs.nn.sigmoid_cross_entropy_with_logits(labels=clicked, logits=logits))
    parts = [gs.trainable_variables(scope) for scope in ("wide", "deep")]
    return ids, clicked, logits, loss, parts


def main():
    arguments = parse_arguments()
    task = gs.train.from_tf_config()
    if task.job == "ps":
        gs.train.Server().join()
        return

    ids, clicked, logits, loss, (wide_variables, deep_variables) = build_model()
    global_step = gs.train.get_or_create_global_step()
    train_wide = gs.train.FtrlOptimizer(0.5).minimize(loss, var_list=wide_variables)
    train_deep = gs.train.AdagradOptimizer(0.2).minimize(loss, global_step, var_list=deep_variables)
    train_op = gs.group(train_wide, train_deep)
    gs.summary.scalar("loss", loss)

    clicks = Clicks()
    random = np.random.default_rng([task.index, task.is_chief])

    def feeds():
        while True:
            batch, labels = clicks.draw(random, BATCH_SIZE)
            yield {ids: batch, clicked: labels}

    hooks = [gs.train.StopAtStepHook(last_step=arguments.steps), gs.train.PrefetchLookupHook(feeds())]
    with gs.train.MonitoredTrainingSession(checkpoint_dir=arguments.run_dir, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)

    if task.is_chief:
        # The parameter servers end with the job: the model is evaluated from its last checkpoint.
        batch, labels = clicks.draw(np.random.default_rng(99), 20_000)
        with gs.Session() as session:
            gs.train.Saver().restore(session, gs.train.latest_checkpoint(arguments.run_dir))
            found, step = session.run([logits, global_step], {ids: batch})
        print(f"ids in the evaluation: {len(np.unique(batch))}, clicked: {labels.mean():.1%}")
        print(f"AUC: {roc_auc_score(labels, found):.4f}")
        print(f"final global step: {step}")


if __name__ == "__main__":
    main()
