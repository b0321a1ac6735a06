import numpy as np
import pytest
from small_model import build

from globalstep.tf1.graph.graph import GraphKeys, add_to_collection, get_collection, get_default_graph
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.ops.summary_ops import scalar
from globalstep.tf1.sessions.monitored_session import MonitoredSession, SingularMonitoredSession
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator
from globalstep.tf1.variables.variables import Variable


def test_what_is_missing_is_made_and_joins_its_collection():
    model = build()
    scalar("loss", model.loss)
    scaffold = Scaffold()
    assert scaffold.init_op is None
    assert scaffold.finalize() is scaffold
    for key, made in [
        (GraphKeys.INIT_OP, scaffold.init_op),
        (GraphKeys.READY_OP, scaffold.ready_op),
        (GraphKeys.READY_FOR_LOCAL_INIT_OP, scaffold.ready_for_local_init_op),
        (GraphKeys.LOCAL_INIT_OP, scaffold.local_init_op),
        (GraphKeys.SUMMARY_OP, scaffold.summary_op),
        (GraphKeys.SAVERS, scaffold.saver),
    ]:
        assert get_collection(key) == [made]
    assert get_default_graph().finalized
    # Another of the same graph finds what the first has made.
    assert Scaffold().finalize().init_op is scaffold.init_op


def test_what_is_in_a_collection_is_taken():
    model = build()
    add_to_collection(GraphKeys.INIT_OP, model.train)
    saver = Saver([model.w])
    add_to_collection(GraphKeys.SAVERS, saver)
    scaffold = Scaffold().finalize()
    assert scaffold.init_op is model.train
    assert scaffold.saver is saver


def test_two_items_in_a_collection_are_refused():
    build()
    add_to_collection(GraphKeys.INIT_OP, "a")
    add_to_collection(GraphKeys.INIT_OP, "b")
    with pytest.raises(RuntimeError) as error:
        Scaffold().finalize()
    assert str(error.value) == (
        'More than one item in the collection "init_op". Please indicate which one to use by passing it to the '
        "tf.Scaffold constructor as:  tf.Scaffold(init_op=item to use)"
    )


def test_a_copy_takes_what_is_not_given():
    model = build()
    first = Scaffold(init_op=model.train, init_feed_dict={model.by: 1.0}, saver="saver")
    second = Scaffold(saver="other", copy_from_scaffold=first)
    assert (second.init_op, second.init_feed_dict, second.saver) == (model.train, {model.by: 1.0}, "other")
    with pytest.raises(TypeError, match=r"^copy_from_scaffold is not a Scaffold instance\.$"):
        Scaffold(copy_from_scaffold=1)


def test_init_op_with_its_feed_then_init_fn():
    start = placeholder(np.float32, [2])
    w = Variable(start, name="w")
    doubled = w.assign_add(w)
    calls = []

    def init_fn(scaffold, session):
        calls.append((scaffold, session.run(w).tolist()))
        session.run(doubled)

    scaffold = Scaffold(init_feed_dict={start: [1.0, 2.0]}, init_fn=init_fn)
    with SingularMonitoredSession(scaffold=scaffold) as session:
        assert session.run(w).tolist() == [2.0, 4.0]
    assert calls == [(scaffold, [1.0, 2.0])]


def test_init_fn_does_not_run_after_a_restore(tmp_path):
    model = build()
    with SingularMonitoredSession() as session:
        session.run(model.train, {model.by: 4.0})
        saved = get_collection(GraphKeys.SAVERS)[0].save(session.raw_session(), str(tmp_path / "m"), 1)
    calls = []
    creator = ChiefSessionCreator(Scaffold(init_fn=lambda *_: calls.append(1)), checkpoint_filename_with_path=saved)
    with MonitoredSession(creator) as session:
        assert session.run(model.w).tolist() == [4.0, 4.0]
    assert calls == []


def test_local_variables_live_in_each_session():
    build()
    count = Variable(7, trainable=False, collections=[GraphKeys.LOCAL_VARIABLES], name="count")
    with SingularMonitoredSession() as session:
        assert session.run(count) == 7


def test_a_model_that_stays_unready_is_an_error():
    model = build()
    with pytest.raises(RuntimeError, match=r"^Init operations did not make model ready for local_init\..*error: .*w"):
        SingularMonitoredSession(scaffold=Scaffold(init_op=model.step.initializer))
