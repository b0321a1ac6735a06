"""A checkpoint that PS tasks ask for, because their write-ahead logs are long."""

import logging

import pytest
from small_model import LocalCluster, build, wait_for_saves

from globalstep.tf1.hooks.checkpoint import CheckpointSaverHook
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.sessions.monitored_session import MonitoredSession
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator


@pytest.fixture
def cluster():
    cluster = LocalCluster(1)
    yield cluster
    cluster.close()
    SummaryWriterCache.clear()


def test_a_chief_that_is_asked_saves_at_its_next_run(cluster, tmp_path, caplog):
    model = build()
    scaffold = Scaffold()
    hook = CheckpointSaverHook(str(tmp_path), save_steps=1000, scaffold=scaffold)
    creator = ChiefSessionCreator(scaffold, cluster.target, checkpoint_dir=str(tmp_path))
    with caplog.at_level(logging.INFO), MonitoredSession(creator, hooks=[hook]) as session:
        session.run(model.train, {model.by: 1.0})
        client = session._tf_sess().cluster
        client.heartbeat.save_asked = frozenset({0})
        session.run(model.train, {model.by: 1.0})
        assert client.heartbeat.save_asked == frozenset()
        wait_for_saves()
    assert "the write-ahead log of /job:ps/task:0" in caplog.text
    assert "Saving checkpoints for 2 into" in caplog.text
