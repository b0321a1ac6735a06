"""Event files: their bytes, and what becomes of errors."""

import io
import os
import re
import warnings

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.summary_pb2 import Summary

from globalstep.chief.events.events import SummaryFileWriter, summary_iterator
from globalstep.errors import DataLossError, NotFoundError, PermissionDeniedError, UnknownError
from globalstep.files.records import TFRecordWriter
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.ops.file_writer import FileWriter, FileWriterCache, SummaryWriter


def files_in(logdir):
    return sorted(str(path) for path in logdir.iterdir())


def events_in(logdir):
    return [event for path in files_in(logdir) for event in summary_iterator(path)]


def scalar(tag, value=1.0):
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def test_the_file_is_there_at_once_and_says_its_version(tmp_path):
    clock = ManualClock(1234567890.5)
    writer = FileWriter(str(tmp_path / "run"), filename_suffix=".eval", clock=clock)
    (path,) = files_in(tmp_path / "run")
    assert re.fullmatch(r"events\.out\.tfevents\.1234567890\..+\.eval", os.path.basename(path))
    (event,) = events_in(tmp_path / "run")
    assert event.file_version == "brain.Event:2"
    assert event.wall_time == 1234567890.5
    writer.close()


def test_what_is_added_comes_back_in_tensorboards_own_loader(tmp_path):
    with FileWriter(str(tmp_path), clock=ManualClock(5.0)) as writer:
        writer.add_summary(scalar("loss", 0.5), 1)
        writer.add_summary(scalar("loss", 0.25).SerializeToString(), global_step=2)
        writer.add_session_log(SessionLog(status=SessionLog.START), 2)
        writer.add_event(Event(step=3))
        assert writer.get_logdir() == str(tmp_path)
    (path,) = files_in(tmp_path)
    first, *added = LegacyEventFileLoader(path).Load()
    assert first.file_version == "brain.Event:2"
    assert [(event.step, event.wall_time) for event in added] == [(1, 5.0), (2, 5.0), (2, 5.0), (3, 0.0)]
    assert [event.summary.value[0].simple_value for event in added[:2]] == [0.5, 0.25]
    assert added[2].session_log.status == SessionLog.START
    assert [event.SerializeToString() for event in added] == [
        event.SerializeToString() for event in list(summary_iterator(path))[1:]
    ]


def test_two_writers_in_one_second_do_not_share_a_file(tmp_path):
    clock = ManualClock(7.0)
    with FileWriter(str(tmp_path), clock=clock) as one, FileWriter(str(tmp_path), clock=clock) as two:
        one.add_summary(scalar("one"))
        two.add_summary(scalar("two"))
    assert len(files_in(tmp_path)) == 2
    assert {event.summary.value[0].tag for event in events_in(tmp_path) if event.summary.value} == {"one", "two"}


def test_what_is_added_after_close_is_dropped_until_reopen(tmp_path):
    writer = FileWriter(str(tmp_path), clock=ManualClock(7.0))
    writer.close()
    writer.close()
    with pytest.warns(UserWarning, match="Attempting to use a closed FileWriter"):
        writer.add_summary(scalar("dropped"))
    writer.reopen()
    writer.reopen()
    writer.add_summary(scalar("kept"))
    writer.close()
    assert len(files_in(tmp_path)) == 2
    tags = [event.summary.value[0].tag for event in events_in(tmp_path) if event.summary.value]
    assert tags == ["kept"]


def test_metadata_goes_with_the_first_use_of_a_tag_only(tmp_path):
    summary = scalar("loss")
    summary.value[0].metadata.display_name = "Loss"
    with FileWriter(str(tmp_path)) as writer:
        writer.add_summary(summary, 1)
        writer.add_summary(summary, 2)
        writer.close()
        writer.reopen()
        writer.add_summary(summary, 3)
    assert summary.value[0].metadata.display_name == "Loss"
    values = {event.step: event.summary.value[0] for event in events_in(tmp_path) if event.summary.value}
    assert {step: value.HasField("metadata") for step, value in values.items()} == {1: True, 2: False, 3: True}


class Disk:
    """A disk that may be full, or broken: what is written to its files fails then."""

    def __init__(self, monkeypatch):
        self.error, disk, claim = None, self, SummaryFileWriter._claim

        class OnDisk(io.FileIO):
            def write(self, data):
                if disk.error is not None:
                    raise disk.error
                return super().write(data)

        def claimed(self, path):
            file = claim(self, path)
            if file is not None:
                file.close()
                file = io.BufferedWriter(OnDisk(path, "ab"))
            return file

        monkeypatch.setattr(SummaryFileWriter, "_claim", claimed)


@pytest.mark.parametrize("from_start", [False, True])
def test_a_full_disk_drops_events_until_there_is_room_and_raises_nothing(tmp_path, monkeypatch, caplog, from_start):
    disk, clock = Disk(monkeypatch), ManualClock()
    full = OSError(28, "No space left on device")
    disk.error = full if from_start else None
    writer = SummaryFileWriter(str(tmp_path), clock=clock)
    disk.error = full
    for step in (1, 2):
        writer.add_event(Event(step=step))
        writer.flush()
    disk.error = None
    writer.add_event(Event(step=3))
    writer.flush()  # it is not tried again at once
    clock.advance(60.0)
    writer.add_event(Event(step=4))
    writer.close()
    assert [event.step for event in events_in(tmp_path) if event.step] == [4]
    assert caplog.text.count("Events are dropped until there is room") == 1
    assert "There is room for events again" in caplog.text


def test_an_error_is_raised_and_what_follows_goes_to_a_new_file(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    writer = SummaryFileWriter(str(tmp_path))
    disk.error = OSError(5, "Input/output error")
    with pytest.raises(UnknownError, match=f"{re.escape(str(tmp_path))}.*Input/output error"):
        writer.add_event(Event(step=1))
    disk.error = None
    writer.add_event(Event(step=2))
    writer.close()
    assert len(files_in(tmp_path)) == 2
    assert events_in(tmp_path)[-1].step == 2


def test_what_is_added_is_in_the_file_at_once(tmp_path):
    with FileWriter(str(tmp_path)) as writer:
        for step in range(50):
            writer.add_summary(scalar("loss"), step)
        assert len(events_in(tmp_path)) == 51


def test_a_deleted_file_is_replaced(tmp_path, caplog):
    with FileWriter(str(tmp_path), clock=ManualClock(7.0)) as writer:
        (path,) = files_in(tmp_path)
        os.unlink(path)
        writer.add_summary(scalar("kept"))
    assert "has been deleted" in caplog.text
    first, second = events_in(tmp_path)
    assert first.file_version == "brain.Event:2"
    assert second.summary.value[0].tag == "kept"


def test_a_directory_that_cannot_be_made_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=str(tmp_path / "file")) as caught:
        FileWriter(str(tmp_path / "file" / "run"))
    assert not isinstance(caught.value, OSError)
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(PermissionDeniedError):
            FileWriter(str(tmp_path / "locked" / "run"))


def test_remote_directories_work(tmp_path):
    pytest.importorskip("fsspec")
    import fsspec

    with FileWriter("memory://events-test/run") as writer:
        writer.add_summary(scalar("loss"), 1)
    names = fsspec.filesystem("memory").ls("events-test/run", detail=False)
    assert len(names) == 1
    assert [event.step for event in summary_iterator(f"memory:/{names[0]}")] == [0, 1]


def test_graphs_are_added_as_graph_or_graph_def(tmp_path):
    graph = Graph()
    Node("NoOp", graph=graph, operation=True, name="stop")
    with FileWriter(str(tmp_path), graph) as writer:
        writer.add_graph(GraphDef(), 3)
        writer.add_graph(graph_def=GraphDef())
        with pytest.raises(ValueError, match="Please pass only graph, or graph_def"):
            writer.add_graph(graph, graph_def=GraphDef())
        with pytest.raises(TypeError, match="The passed graph must be an instance of `Graph`"):
            writer.add_graph("graph")
    events = events_in(tmp_path)
    assert [node.name for node in GraphDef.FromString(events[1].graph_def).node] == ["stop"]
    assert [event.step for event in events] == [0, 0, 3, 0]
    with pytest.raises(TypeError):
        FileWriter(str(tmp_path / "never"), "graph")
    assert not (tmp_path / "never").exists()


def test_summary_writer_takes_the_arguments_of_0_x(tmp_path):
    with SummaryWriter(str(tmp_path), GraphDef(), 5, 60) as writer:
        writer.add_summary(scalar("loss"), 1)
    assert [event.WhichOneof("what") for event in events_in(tmp_path)] == ["file_version", "graph_def", "summary"]


def test_a_directory_has_one_cached_writer(tmp_path):
    FileWriterCache.clear()
    with Graph().as_default():
        writer = FileWriterCache.get(str(tmp_path))
        assert FileWriterCache.get(str(tmp_path)) is writer
        writer.close()
        again = FileWriterCache.get(str(tmp_path))
        assert again is not writer
        FileWriterCache.clear()
        assert again.closed


def test_damage_is_named_after_the_whole_events(tmp_path):
    with FileWriter(str(tmp_path)) as writer:
        writer.add_summary(scalar("loss"), 1)
    (path,) = files_in(tmp_path)
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 3)
    events = summary_iterator(path)
    assert next(events).file_version == "brain.Event:2"
    with pytest.raises(DataLossError, match=f"truncated record at .* of {re.escape(path)}"):
        next(events)
    with TFRecordWriter(str(tmp_path / "other")) as records:
        records.write(b"\xff\xff no event")
    with pytest.raises(DataLossError, match=r"Record 0 of .*other is whole but holds no Event"):
        next(summary_iterator(str(tmp_path / "other")))
    with pytest.raises(NotFoundError):
        next(summary_iterator(str(tmp_path / "nothing")))


def test_run_metadata_tags_are_used_once(tmp_path):
    from tensorboard.compat.proto.config_pb2 import RunMetadata

    with FileWriter(str(tmp_path)) as writer:
        writer.add_run_metadata(RunMetadata(), "step1", 1)
        with pytest.raises(ValueError, match="The provided tag was already used"):
            writer.add_run_metadata(RunMetadata(), "step1", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert events_in(tmp_path)[1].tagged_run_metadata.tag == "step1"
