"""Training goes on while a checkpoint is written, and nothing of it is lost or mixed up."""

import errno
import os
import threading

import numpy as np
import pytest
from small_model import LocalCluster, build, wait_for_saves

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, verify
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state, latest_checkpoint
from globalstep.chief.hooks.checkpoint import CheckpointSaverListener
from globalstep.errors import FailedPreconditionError, ResourceExhaustedError, UnknownError
from globalstep.files.storage import PROBE, LocalStorage
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock
from globalstep.tf1.hooks.checkpoint import CheckpointSaverHook
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.sessions.monitored_session import MonitoredSession
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator
from globalstep.tf1.variables.variables import Variable

#: The index that counts: that of the chief's term, which is written before its copy.
INDEX = ".index.term-"
SHARD = ".shard-"
#: Longer than any of these tests may take: a wait that is not ended is a failure.
PATIENCE_SECS = 60.0


class SlowStorage(LocalStorage):
    """Waits before it writes files of one kind, once `armed`; with `blind`, PS tasks do not see the directory."""

    def __init__(self, kind=INDEX, blind=False, error=None):
        self.kind, self.blind, self.error = kind, blind, error
        self.armed = False
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def open_write(self, path):
        if self.blind and PROBE in path:
            return open(os.devnull, "wb")
        if self.armed and self.kind in path:
            self.reached.set()
            assert self.go_on.wait(PATIENCE_SECS)
            if self.error is not None:
                raise self.error
        return super().open_write(path)


class Listener(CheckpointSaverListener):
    def __init__(self):
        self.calls = []

    def before_save(self, session, global_step_value):
        self.calls.append(("before", global_step_value))

    def after_save(self, session, global_step_value):
        self.calls.append(("after", global_step_value))


class Training:
    """A chief whose hook saves every second step of a model that counts."""

    def __init__(self, cluster, directory, storage, make_saver=Saver, listeners=(), clock=None):
        self.directory, self.storage = directory, storage
        self.model = build()
        scaffold = Scaffold(saver=make_saver(storage=storage))
        self.hook = CheckpointSaverHook(directory, save_steps=2, scaffold=scaffold, listeners=listeners)
        creator = ChiefSessionCreator(
            scaffold, cluster.target, checkpoint_dir=str(directory), clock=ManualClock(), max_wait_secs=10
        )
        self.session = MonitoredSession(creator, [self.hook], clock=clock or ManualClock())
        storage.armed = True

    def step(self):
        return self.session.run([self.model.train, self.model.step], {self.model.by: 1.0})[1]

    def path(self, step):
        return str(self.directory / f"model.ckpt-{step}")

    def value(self, step):
        """What the checkpoint of a step has for w."""
        verify(self.path(step))
        with CheckpointReader(self.path(step)) as reader:
            assert reader.get_tensor("global_step") == step
            return reader.get_tensor("w").tolist()


@pytest.fixture
def cluster():
    made = LocalCluster(shards=2)
    yield made
    made.close()
    SummaryWriterCache.clear()


@pytest.mark.parametrize("storage", [SlowStorage(INDEX), SlowStorage(SHARD, blind=True)], ids=["ps", "chief"])
def test_training_goes_on_while_a_checkpoint_is_written(cluster, tmp_path, storage):
    listener = Listener()
    training = Training(cluster, tmp_path, storage, listeners=[listener])
    for _ in range(2):
        training.step()
    assert storage.reached.wait(PATIENCE_SECS)
    # The write is stuck, and runs come back all the same.
    assert training.step() == 2
    assert training.session._tf_sess().run(training.model.w).tolist() == [3.0, 3.0]
    assert latest_checkpoint(str(tmp_path)) == training.path(0)
    assert listener.calls == [("before", 0), ("after", 0), ("before", 2)]
    storage.go_on.set()
    wait_for_saves()
    assert training.value(2) == [2.0, 2.0]
    assert latest_checkpoint(str(tmp_path)) == training.path(2)
    training.session.close()
    assert training.value(3) == [3.0, 3.0]
    calls = [("before", 0), ("after", 0), ("before", 2), ("after", 2), ("before", 3), ("after", 3)]
    assert listener.calls == calls


def test_a_save_that_is_due_waits_for_the_one_under_way(cluster, tmp_path):
    storage, listener = SlowStorage(), Listener()
    training = Training(cluster, tmp_path, storage, listeners=[listener])
    for _ in range(3):
        training.step()
    trained = threading.Thread(target=training.step, name="trainer")
    trained.start()
    storage.go_on.set()
    trained.join()
    wait_for_saves()
    training.session.close()
    assert listener.calls[2:] == [("before", 2), ("after", 2), ("before", 4), ("after", 4)]
    state = get_checkpoint_state(str(tmp_path))
    assert list(state.all_model_checkpoint_paths) == [training.path(step) for step in (0, 2, 4)]
    assert training.value(2) == [2.0, 2.0]
    assert training.value(4) == [4.0, 4.0]


def full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken():
    return OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_goes_wrong_is_raised_in_the_next_run_and_the_checkpoints_before_stay(cluster, tmp_path):
    storage = SlowStorage(error=broken())
    training = Training(cluster, tmp_path, storage)
    for _ in range(3):
        training.step()
    storage.go_on.set()
    wait_for_saves()
    with pytest.raises(UnknownError, match=r"model\.ckpt-2\.index\.term-\d+\.json: Input/output error"):
        training.step()
    assert latest_checkpoint(str(tmp_path)) == training.path(0)
    assert [name for name in os.listdir(tmp_path) if "ckpt-2" in name] == []
    # Said once: who goes on in spite of it may, and the next save succeeds.
    storage.error = None
    training.step()
    training.session.close()
    assert training.value(4) == [4.0, 4.0]


def test_what_goes_wrong_is_raised_at_the_end_and_the_last_step_is_saved_all_the_same(cluster, tmp_path):
    storage = SlowStorage(error=broken())
    training = Training(cluster, tmp_path, storage)
    for _ in range(3):
        training.step()
    assert storage.reached.wait(PATIENCE_SECS)
    storage.armed = False
    storage.go_on.set()
    with pytest.raises(UnknownError, match=r"model\.ckpt-2\.index\.term-\d+\.json"):
        training.session.close()
    assert latest_checkpoint(str(tmp_path)) == training.path(3)


def test_a_full_disk_ends_no_training_and_the_next_save_comes_when_it_is_due(cluster, tmp_path, caplog):
    storage = SlowStorage(error=full())
    storage.go_on.set()
    training = Training(cluster, tmp_path, storage)
    for before in range(5):
        assert training.step() == before
        wait_for_saves()
    assert latest_checkpoint(str(tmp_path)) == training.path(0)
    assert caplog.text.count("There is no room for a checkpoint") == 2
    storage.error = None
    training.step()
    wait_for_saves()
    training.step()
    assert "There is room in" in caplog.text
    assert training.value(6) == [6.0, 6.0]
    training.session.close()
    assert training.value(7) == [7.0, 7.0]


@pytest.mark.parametrize("room", [False, True], ids=["still full", "room again"])
def test_the_last_save_is_made_again_where_the_one_before_found_no_room(cluster, tmp_path, room):
    """It is of the same step: nothing else says that it is missing."""
    storage = SlowStorage(error=full())
    training = Training(cluster, tmp_path, storage)
    for _ in range(2):
        training.step()
    assert storage.reached.wait(PATIENCE_SECS)
    storage.go_on.set()
    wait_for_saves()
    if room:
        storage.error = None
        training.session.close()
        assert training.value(2) == [2.0, 2.0]
        return
    with pytest.raises(ResourceExhaustedError, match=r"model\.ckpt-2\.index\.term-\d+\.json: No space left on device"):
        training.session.close()
    assert latest_checkpoint(str(tmp_path)) == training.path(0)


class FullStorage(LocalStorage):
    """Takes nothing while it is full, not even a probe."""

    armed = full = True

    def open_write(self, path):
        if self.full:
            raise full()
        return super().open_write(path)


def test_a_chief_that_starts_on_a_full_disk_trains(cluster, tmp_path, caplog):
    storage = FullStorage()
    training = Training(cluster, tmp_path, storage)
    for _ in range(2):
        training.step()
    assert "There is no room for a checkpoint" in caplog.text
    storage.full = False
    training.session.close()
    assert training.value(2) == [2.0, 2.0]


def test_a_session_that_fails_waits_for_the_checkpoint(cluster, tmp_path):
    storage = SlowStorage(SHARD, blind=True)
    training = Training(cluster, tmp_path, storage, clock=SYSTEM_CLOCK)
    coord = training.hook._coord

    def let_go_at_the_end():
        assert coord.wait_for_stop(PATIENCE_SECS)
        storage.go_on.set()

    helper = threading.Thread(target=let_go_at_the_end, name="helper")
    helper.start()

    def fail():
        with training.session:
            for _ in range(3):
                training.step()
            assert storage.reached.wait(PATIENCE_SECS)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    helper.join()
    wait_for_saves()
    assert training.value(2) == [2.0, 2.0]


def test_a_ps_that_loses_its_state_meanwhile_takes_only_that_checkpoint(cluster, tmp_path, caplog):
    storage = SlowStorage(SHARD, blind=True)
    training = Training(cluster, tmp_path, storage)
    for _ in range(3):
        training.step()
    assert storage.reached.wait(PATIENCE_SECS)
    cluster.lose(1 - cluster.view().sequencer)
    storage.go_on.set()
    wait_for_saves()
    storage.armed = False
    with caplog.at_level("WARNING", "globalstep"):
        assert training.step() == 0
    assert f"from step 3 to step 0, to checkpoint {training.path(0)}" in caplog.text
    training.session.close()
    assert training.value(1) == [1.0, 1.0]
    assert not os.path.exists(training.path(2) + INDEX)


def test_a_saver_with_a_save_of_its_own_saves_within_the_run(cluster, tmp_path):
    class Own(Saver):
        threads = []

        def save(self, *args, **kwargs):
            self.threads.append(threading.current_thread())
            return super().save(*args, **kwargs)

    training = Training(cluster, tmp_path, SlowStorage("nothing"), make_saver=Own)
    training.step()
    training.step()
    assert training.value(2) == [2.0, 2.0]
    training.session.close()
    assert set(Own.threads) == {threading.current_thread()}


@pytest.mark.usefixtures("graph")
def test_savers_own_background_saves_take_turns_with_its_saves(make_session, tmp_path):
    w = Variable(np.zeros(3, np.float32), name="w")
    storage = SlowStorage(".index.json")
    session = make_session(shards=2, storage=storage)
    session.initialize()
    saver = Saver([w], storage=storage)
    storage.armed = True
    first = saver.start_save(session, str(tmp_path / "m"), global_step=1)
    assert (first.prefix, first.done()) == (str(tmp_path / "m-1"), False)
    session.cluster.values["w"] += 1
    threading.Thread(target=lambda: storage.reached.wait(PATIENCE_SECS) and storage.go_on.set(), name="helper").start()
    second = saver.save(session, str(tmp_path / "m"), global_step=2)
    assert first.result() == str(tmp_path / "m-1")
    assert first.done()
    assert saver.last_checkpoints == [first.prefix, second]
    values = []
    for path in saver.last_checkpoints:
        with CheckpointReader(path) as reader:
            values.append(reader.get_tensor("w").tolist())
    assert values == [[0.0] * 3, [1.0] * 3]


@pytest.mark.usefixtures("graph")
def test_what_goes_wrong_before_the_cut_is_raised_at_once(make_session, tmp_path):
    w = Variable(np.zeros(3, np.float32), name="w")
    session = make_session()
    with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value w"):
        Saver([w]).start_save(session, str(tmp_path / "m"))
    session.initialize()
    with pytest.raises(ValueError, match="doesn't exist, can't save"):
        Saver([w]).start_save(session, str(tmp_path / "nowhere" / "a" / "m"))
    nothing = Saver([], allow_empty=True).start_save(session, str(tmp_path / "m"))
    assert (nothing.result(), nothing.prefix) == (None, None)
    wait_for_saves()
