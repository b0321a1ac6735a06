"""Conditional random fields, beside sums over all tags."""

import itertools

import numpy as np
import pytest

import globalstep as gs

RNG = np.random.default_rng(3)
LENGTHS = np.array([4, 2, 1, 0], "i")
SCORES, TRANSITIONS = RNG.normal(size=(4, 4, 3)).astype("f"), RNG.normal(size=(3, 3)).astype("f")
TAGS = RNG.integers(0, 3, (4, 4)).astype("i")


def score_of(row, tags):
    given = SCORES[row, range(len(tags)), list(tags)].sum()
    return given + sum(TRANSITIONS[a, b] for a, b in itertools.pairwise(tags))


def all_scores(row):
    return {tags: score_of(row, tags) for tags in itertools.product(range(3), repeat=int(LENGTHS[row]))}


def norm_of(row):
    return np.log(sum(np.exp(one) for one in all_scores(row).values())) if LENGTHS[row] else 0.0


def test_likelihoods_and_their_gradients():
    scores = gs.placeholder(gs.float32, [None, None, 3])
    likelihood, transitions = gs.contrib.crf.crf_log_likelihood(scores, TAGS, LENGTHS)
    assert (transitions.op.name, likelihood.shape.as_list()) == ("transitions", [4])
    slopes = gs.gradients(likelihood, [scores, transitions])
    with gs.Session() as session:
        session.run(transitions.initializer)
        transitions.load(TRANSITIONS, session)
        found, of_scores, of_transitions = session.run([likelihood, *slopes], {scores: SCORES})
    expected = [score_of(row, TAGS[row, : LENGTHS[row]]) - norm_of(row) for row in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # Of a log-likelihood: what is there less what is expected.
    for row in range(4):
        marginals = np.zeros((4, 3))
        for tags, score in all_scores(row).items():
            marginals[range(len(tags)), list(tags)] += np.exp(score - norm_of(row)) if tags else 0
        counts = np.eye(3)[TAGS[row]] * (np.arange(4) < LENGTHS[row])[:, None]
        np.testing.assert_allclose(of_scores[row], counts - marginals, atol=1e-5)
    np.testing.assert_allclose(of_transitions.sum(), 0, atol=1e-4)


def test_the_best_tags():
    tags, best = gs.contrib.crf.crf_decode(SCORES, TRANSITIONS, LENGTHS)
    with gs.Session() as session:
        found, scores = session.run([tags, best])
    for row in range(3):
        expected = max(all_scores(row), key=all_scores(row).get)
        assert found[row].tolist() == [*expected, *[0] * (4 - LENGTHS[row])]
        assert scores[row] == pytest.approx(score_of(row, expected), rel=1e-5)
    assert gs.contrib.crf.viterbi_decode(SCORES[0], TRANSITIONS) == (found[0].tolist(), pytest.approx(scores[0]))
