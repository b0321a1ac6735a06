"""Actors that each have a net, and an optimizer of it, in a scope of their own, beside the one that all share."""

import contextlib

import pytest
from served_tasks import starting

import globalstep as gs
from globalstep.tf1.sessions.session import Session


@pytest.fixture
def address():
    with starting() as start:
        yield start()[0].address


def agent(scope):
    """A net with its optimizer, as a class of a program makes them."""
    with gs.variable_scope(scope):
        w = gs.get_variable("w", [2], initializer=gs.zeros_initializer())
        train = gs.train.AdamOptimizer(0.1).minimize(gs.reduce_sum(gs.square(w - 1.0)), var_list=[w])
    return w, train


@contextlib.contextmanager
def actor(address, scope):
    """A process's session and its own net, which it makes after the learner's."""
    with gs.Graph().as_default():
        learner = agent("learner")
        own = agent(scope) if scope else None
        with Session(f"grpc://{address}") as session:
            session.run(gs.global_variables_initializer())
            yield session, learner, own


def test_optimizers_in_scopes_of_their_own_do_not_meet(address):
    with actor(address, "actor_0") as first, actor(address, "actor_1") as second:
        for session, (learner, train), (own, train_own) in (first, second):
            session.run([train, train_own])
            assert session.run(own).tolist() == pytest.approx([0.1, 0.1])
            assert session.run(learner).tolist() != [0.0, 0.0]
