"""`globalstep audit`: what it proves, and that it finds every kind of tampering (rung 2)."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from recorded_history import RecordedHistory, in_file

import globalstep as gs
from globalstep.chief.journal.journal_files import encode_batch, read_segment, segment_names, write_segment
from globalstep.chief.journal.journal_keeping import JournalKeeper
from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.deploy.audit.audit import audit
from globalstep.deploy.audit.checks import Audit, FewerMade, StepProof
from globalstep.deploy.audit.cli import _lines
from globalstep.deploy.cli import main
from globalstep.errors import UnavailableError
from globalstep.files.journal_records import RECORD_DTYPE, EventKind
from globalstep.ps.ledger.journal import Journal
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import LINGER_SECS
from globalstep.ps.shard import events
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal.log_file import segments_in
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.wire.declarations import Increment, Op, OpKind, OutcomeKind, Push, PushId, VariableDecl
from globalstep.wire.known_progress import Known
from globalstep.worker.client.client import ClusterClient

STEP = [Increment("global_step")]


def train(directory, last_step, save_steps=20):
    """Train a small model to a step in a session of its own; gives nothing."""
    with gs.Graph().as_default():
        variable = gs.Variable(np.zeros(3), name="v")
        step = gs.train.get_or_create_global_step()
        train_op = gs.train.GradientDescentOptimizer(1.0).minimize(-gs.reduce_sum(variable), global_step=step)
        with gs.train.MonitoredTrainingSession(
            checkpoint_dir=str(directory),
            hooks=[gs.train.StopAtStepHook(last_step=last_step)],
            save_checkpoint_steps=save_steps,
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    SummaryWriterCache.clear()


class Job:
    """PS tasks in this process and a chief's client of them, whose journal is stored when a test says so."""

    def __init__(self, directory, shards=1, clock=SYSTEM_CLOCK):
        self.directory = str(directory)
        self.ps = LocalPS(shards, clock=clock)
        self.clients = []

    def begin(self, ledger=b"", policy=None):
        client = self.client("/job:chief/task:0", policy)
        client.begin(sequencer=0, open=True, run=RunIdentity(directory=self.directory), ledger=ledger)
        client.declare([VariableDecl("global_step", "int64", (), is_step=True)], [])
        first = json.loads(ledger)["steps"]["global_step"] if ledger else 0
        client.push(Push(ops=[Op(OpKind.ASSIGN, "global_step", value=np.array(first))]))
        client.journal = JournalKeeper(client, self.directory)
        return client

    def client(self, task, policy=None):
        self.clients.append(
            ClusterClient(self.ps.transports(), task=task, clock=ManualClock(), member=False, policy=policy)
        )
        for control in self.ps.controls:
            control.handler.shard.handle(events.Heartbeat(self.clients[-1].client_id, task, 600.0))
        self.clients[-1].refresh()
        return self.clients[-1]

    def close(self):
        for client in self.clients:
            client.close()


@pytest.fixture
def job_of(tmp_path):
    made = []

    def make(shards=1, clock=SYSTEM_CLOCK):
        made.append(Job(tmp_path, shards, clock))
        return made[-1]

    yield make
    for running in made:
        running.close()


@pytest.fixture
def job(job_of):
    return job_of()


def push(client, times=1, seen=None):
    for _ in range(times):
        client.push(Push(increments=STEP, seen_steps={} if seen is None else {"global_step": seen}))


def rewritten(directory, change, segment=0):
    """Change the rows of a segment's batches, with good checksums."""
    name = segment_names(str(directory))[segment]
    found = read_segment(str(directory), name)
    whole = np.concatenate([batch.rows for batch in found.batches])
    clients = {number: item for batch in found.batches for number, item in batch.clients.items()}
    rows = np.asarray(change(whole.copy()), RECORD_DTYPE)
    batch = replace(found.batches[-1], first=found.batches[0].first, records=rows.tobytes(), clients=clients)
    write_segment(str(directory), name, found.header, [encode_batch(batch)])


def contribute(client, base, wanted=2, closes=False):
    """Contribute to what follows a value of the step, or have that made of what is there; gives the outcome's kind."""
    increments = [Increment("global_step", 1, wanted, closes=closes)]
    return client.push(Push(increments=increments, seen_steps={"global_step": base}), at_once=True).outcome.kind


# ---- Proofs ---------------------------------------------------------------------------------


def test_a_run_that_went_on_from_its_checkpoint_is_proven(tmp_path, capsys):
    train(tmp_path, 50)
    train(tmp_path, 90)
    assert main(["audit", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "global_step = 90 = 0 + 90 accepted pushes" in printed
    assert "model.ckpt-90: global_step = 90, the journal's last" in printed
    assert printed.endswith("PROVEN\n")
    assert main(["audit", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["proven"]
    assert told["steps"]["global_step"] == {"base": 0, "pushes": 90, "moved": 90, "value": 90}
    assert [item["parent"] for item in told["incarnations"]] == [0, told["incarnations"][0]["number"]]


def test_workers_are_counted_by_task(job, tmp_path):
    chief = job.begin()
    one, two = job.client("/job:worker/task:0"), job.client("/job:worker/task:1")
    push(one, 3, seen=0)
    push(two, 2, seen=1)
    push(job.client("/job:worker/task:1"), 1, seen=5)
    chief.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven
    first, second = found.workers["/job:worker/task:0"], found.workers["/job:worker/task:1"]
    assert (first.pushes, dict(first.staleness)) == (3, {0: 1, 1: 1, 2: 1})
    assert (second.pushes, len(second.clients), dict(second.staleness)) == (3, 2, {2: 1, 3: 1, 0: 1})
    assert (second.quantile(0.5), second.quantile(0.95)) == (2, 3)


def test_what_a_worker_pushed_before_the_sequencer_had_heard_of_it_counts_for_its_task(job, tmp_path):
    chief, late = job.begin(), job.client("")
    push(late, 2)
    chief.journal.catch_up()
    (control,) = job.ps.controls
    control.handler.shard.handle(events.Heartbeat(late.client_id, "/job:worker/task:0", 600.0))
    push(late, 3)
    chief.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven
    assert {task: worker.pushes for task, worker in found.workers.items() if worker.pushes} == {"/job:worker/task:0": 5}


def test_contributions_and_steps_are_counted_apart(job, tmp_path, capsys):
    chief = job.begin()
    one, two, three = (job.client(f"/job:worker/task:{at}") for at in range(3))
    for base in range(4):
        for client in (one, two, three):
            contribute(client, base)
    for client in (two, three):
        job.ps.controls[0].handler.shard.handle(events.Leave(client.client_id))
    for base in (4, 5):
        assert contribute(one, base) is OutcomeKind.ACCEPTED
        assert contribute(one, base, closes=True) is OutcomeKind.ACCEPTED
    assert contribute(one, 5, closes=True) is OutcomeKind.LATE
    assert contribute(one, 6) is OutcomeKind.ACCEPTED
    chief.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    assert found.steps["global_step"].value == 6
    made = found.made["global_step"]
    assert (made.steps, made.used, made.unused) == (6, 10, 1)
    assert made.fewer == [FewerMade(5, 6, 1, 2, "the others had left")]
    given = {task: (worker.contributions, worker.late) for task, worker in found.workers.items()}
    tasks = [f"/job:worker/task:{at}" for at in range(3)]
    assert [given[task] for task in tasks] == [(7, 0), (4, 0), (0, 4)]
    assert found.workers[tasks[0]].others == 0
    assert main(["audit", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "made of     10 contributions in 6 steps of global_step, and 1 of which no step was made; 4 came" in printed
    assert "fewer       global_step 5 to 6: of 1 instead of 2 contributions: the others had left" in printed
    assert re.search("^/job:worker/task:2 +1 +0 +0 +4 ", printed, re.MULTILINE)
    assert main(["audit", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["made"]["global_step"]["used"] == 10


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        (lambda job, clock, two: clock.advance(700.0), "a worker was gone, and its lease over"),
        (lambda job, clock, two: job.handle(events.Leave(two.client_id)), "the others had left"),
    ],
    ids=["its lease is over", "it has left"],
)
def test_the_journal_says_why_a_step_has_fewer_contributions(job_of, tmp_path, gone, why):
    clock = ManualClock()
    job = job_of(clock=clock)
    chief = job.begin()
    one, two = job.client("/job:worker/task:0"), job.client("/job:worker/task:1")
    shard = job.ps.controls[0].handler.shard
    for client in (one, two):
        contribute(client, 0)
    gone(shard, clock, two)
    for client in (chief, one):
        shard.handle(events.Heartbeat(client.client_id, client.task, 600.0))
    contribute(one, 1)
    assert contribute(one, 1, closes=True) is OutcomeKind.ACCEPTED
    chief.journal.catch_up()
    assert audit(str(tmp_path)).made["global_step"].fewer == [FewerMade(2, 2, 1, 2, why)]


def test_a_step_that_nobody_else_would_contribute_to_says_so(job_of, tmp_path):
    clock = ManualClock()
    job = job_of(clock=clock)
    chief = job.begin()
    one = job.client("/job:worker/task:0")
    contribute(one, 0)
    clock.advance(LINGER_SECS + 1.0)
    assert contribute(one, 0, closes=True) is OutcomeKind.ACCEPTED
    chief.journal.catch_up()
    assert audit(str(tmp_path)).made["global_step"].fewer == [FewerMade(1, 1, 1, 2, "no others were here")]


@pytest.mark.parametrize(
    ("kind", "field", "said"),
    [
        (EventKind.CONTRIBUTED, "by", "is contribution 7 to global_step = 1; before it there were 1 to 1"),
        (EventKind.MADE_OF, "value", "makes global_step = 1 of 7 contributions; 2 were accepted"),
    ],
)
def test_a_step_that_is_not_of_the_contributions_before_it_is_named(job, tmp_path, kind, field, said):
    chief = job.begin()
    for client in (job.client("/job:worker/task:0"), job.client("/job:worker/task:1")):
        contribute(client, 0)
    chief.journal.catch_up()
    assert audit(str(tmp_path)).proven

    def wrong(rows):
        at = np.flatnonzero(rows["kind"] == kind)[-1]
        rows[field][at] = 7
        return rows

    rewritten(tmp_path, wrong)
    found = audit(str(tmp_path))
    assert not found.proven
    assert any(said in text for text in found.findings.wrong), found.findings.wrong


def test_retries_are_counted(job, tmp_path):
    chief = job.begin()
    push(chief, 2)
    shard = job.ps.controls[0].handler.shard
    chief._protocol._sequence -= 1
    push(chief)
    chief.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven
    assert found.workers["/job:chief/task:0"].duplicates == shard.view().statistics.duplicates == 1
    assert found.steps["global_step"].value == 2


def test_what_a_restore_discards_is_counted_as_lost(job, tmp_path):
    chief = job.begin()
    push(chief, 4)
    ledger = job.ps.controls[0].handler.shard.now.ledger.dumped_later()()
    push(chief, 3)
    chief.journal.catch_up()
    again = job.begin(ledger)
    push(again, 2)
    again.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    assert (found.steps["global_step"].value, found.steps["global_step"].pushes) == (6, 6)
    assert [item.lost for item in found.incarnations] == [3, 0]
    first = found.incarnations[0]
    assert (first.unrecorded, first.lost_at_least) == (0, False), "a sequencer that is there knows all"
    assert found.workers["/job:chief/task:0"].lost == 3
    # A restart without a checkpoint discards all.
    third = job.begin()
    push(third, 1)
    third.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    assert found.steps["global_step"].value == 1
    assert [item.lost for item in found.incarnations] == [7, 2, 0]


def killed_after(job, fetched, more):
    """A chief and a worker push; the sequencer dies when some of that was fetched. Gives worker and ledger."""
    chief = job.begin()
    worker = job.client("/job:worker/task:0")
    push(chief, 2)
    ledger = job.ps.controls[0].handler.shard.now.ledger.dumped_later()()
    push(worker, fetched)
    chief.journal.catch_up()
    push(worker, more)
    job.ps.controls[0].handler.shard = Shard(ManualClock())
    return worker, ledger


def test_what_a_killed_sequencer_took_with_it_is_lost_as_far_as_clients_were_told(job, tmp_path, capsys, caplog):
    worker, ledger = killed_after(job, fetched=3, more=190)
    worker.heartbeat.beat()
    again = job.begin(ledger)
    push(again, 1)
    again.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    first, second = found.incarnations
    assert (first.lost, first.unrecorded, first.lost_at_least) == (193, 190, True)
    assert (second.lost, second.lost_at_least) == (0, False)
    assert main(["audit", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "lost        at least 193 accepted pushes" in printed
    assert "190 of them are in no journal" in printed
    assert re.search(rf"^{first.number} .* ≥193$", printed, re.MULTILINE)
    assert re.search(rf"^{second.number} .* 0$", printed, re.MULTILINE)
    assert re.search("^/job:worker/task:0 +1 +0 +≥3 ", printed, re.MULTILINE)
    assert not caplog.records


def test_a_client_that_comes_back_after_the_restore_is_heard_too(job, tmp_path, caplog):
    worker, ledger = killed_after(job, fetched=3, more=190)
    again = job.begin(ledger)
    # As the announcement of the restore had it.
    again.run.known_progress.hear(worker.incarnation, Known(6, {"global_step": 5}, 6))
    again.journal.catch_up()
    worker.heartbeat.beat()
    with caplog.at_level("WARNING", "globalstep"):
        again.journal.catch_up()
    assert "had come further than was known" in caplog.text
    assert "at least to {'global_step': 195}, as a client has heard, not only to {'global_step': 5}" in caplog.text
    assert audit(str(tmp_path)).incarnations[0].lost == 193


def test_what_nobody_knows_is_not_said_to_be_nothing(job, tmp_path, capsys):
    _, ledger = killed_after(job, fetched=0, more=5)
    again = job.begin(ledger)
    push(again, 1)
    again.journal.catch_up()
    assert main(["audit", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "lost        not known" in printed
    assert re.search(rf"^{audit(str(tmp_path)).incarnations[0].number} .* \?$", printed, re.MULTILINE)


def test_a_step_that_the_program_assigns_begins_anew(job, tmp_path):
    chief = job.begin()
    push(chief, 3)
    chief.push(Push(ops=[Op(OpKind.ASSIGN, "global_step", value=np.array(100))]))
    push(chief, 2)
    chief.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    proof = found.steps["global_step"]
    assert (proof.base, proof.pushes, proof.value) == (100, 2, 102)


def test_a_new_chief_goes_on_where_the_files_end(job, tmp_path):
    chief = job.begin()
    push(chief, 3)
    chief.journal.catch_up()
    push(chief, 3)
    other = job.client("/job:worker/task:0")
    taken_over = JournalKeeper(other, str(tmp_path))
    push(other, 2)
    assert taken_over.catch_up()
    # The old one was not dead after all.
    assert chief.journal.catch_up()
    push(chief, 1)
    assert chief.journal.catch_up()
    assert taken_over.catch_up()
    assert len(segment_names(str(tmp_path))) == 2
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    assert found.steps["global_step"].pushes == 9


def test_long_journals_have_several_files(job, tmp_path, monkeypatch):
    monkeypatch.setattr("globalstep.chief.journal.journal_keeping._SEGMENT_BYTES", 2000)
    chief = job.begin()
    for _ in range(40):
        push(chief, 10)
        assert chief.journal.catch_up()
    assert len(segment_names(str(tmp_path))) > 3
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    assert found.steps["global_step"].pushes == 400


def test_a_journal_that_cannot_be_stored_waits(job, tmp_path, monkeypatch, caplog):
    chief = job.begin()
    push(chief, 3)

    def refuse(*args):
        raise UnavailableError("The disk has gone for a walk.")

    with monkeypatch.context() as patched:
        patched.setattr("globalstep.chief.journal.journal_keeping.write_segment", refuse)
        assert not chief.journal.catch_up()
        assert not chief.journal.catch_up()
    assert caplog.text.count("gone for a walk") == 1
    push(chief, 1)
    assert chief.journal.catch_up()
    assert audit(str(tmp_path)).steps["global_step"].pushes == 4


def test_journals_lie_wherever_storage_does(job):
    pytest.importorskip("fsspec")
    job.directory = "memory://audited/run"
    chief = job.begin()
    push(chief, 5)
    assert chief.journal.catch_up()
    push(chief, 5)
    assert chief.journal.catch_up()
    found = audit(job.directory)
    assert found.proven, found.findings
    assert found.steps["global_step"].pushes == 10


def test_what_clients_saw_is_judged_together_with_the_journal(job, tmp_path, capsys):
    chief, file = job.begin(), tmp_path / "history.jsonl"
    history = RecordedHistory(in_file(file))
    for _ in range(5):
        given = {"incarnation": chief.incarnation, "add": {"global_step": 1}}
        with history.operation(chief.client_id, "push", **given) as told:
            outcome = chief.push(Push(increments=STEP)).outcome
            told |= {"index": outcome.index, "read": dict(outcome.steps)}
        push(job.client("/job:worker/task:0"))
    chief.journal.catch_up()
    command = ["audit", str(tmp_path), "--history", str(file)]
    assert main(command) == 0
    assert "history     5 push ok\n" in capsys.readouterr().out
    for now, other, said in (
        ('"index": 4', '"index": 3', "it counts; the journal has a push of"),
        ('"global_step": 3}', '"global_step": 4}', "shows global_step = 4; what came up to entry 4 makes 3 of it"),
        ('"global_step": 1}}', '"global_step": 2}}', "shows global_step = 3; what came up to entry 4 makes 5 of it"),
    ):
        changed = tmp_path / "changed.jsonl"
        changed.write_text(file.read_text().replace(now, other))
        assert main([*command[:-1], str(changed)]) == 1
        assert said in capsys.readouterr().out
    assert main([*command, str(tmp_path / "nowhere")]) == 2


# ---- Tampering ------------------------------------------------------------------------------


@pytest.fixture
def kept(job, tmp_path):
    """The directory of a run with an assign, 20 pushes and a snapshot."""
    chief = job.begin()
    push(chief, 10, seen=0)
    with chief.snapshot():
        pass
    push(chief, 10, seen=0)
    chief.journal.catch_up()
    assert audit(str(tmp_path)).proven
    return tmp_path


def swapped(rows):
    rows[[6, 9]] = rows[[9, 6]]
    return rows


def with_value(rows):
    rows["value"][7] += 1
    return rows


def with_big_move(rows):
    rows["by"][7] = 5
    return rows


def with_refused_index(rows):
    rows["kind"][7] = EventKind.REFUSED_DONE
    return rows


def renumbered(rows):
    """A push taken out, and all that came after it moved up."""
    rows = np.delete(rows, 7)
    rows["index"][7:] -= 1
    return rows


def copied(rows):
    """A push copied as one of its own, with everything after it moved on."""
    rows = np.insert(rows, 8, rows[7])
    rows["index"][8:] += 1
    rows["value"][8:][rows["kind"][8:] == EventKind.PUSH] += 1
    return rows


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: np.delete(rows, 7), r"Entry 7 is missing"),
        (lambda rows: np.delete(rows, [7, 8, 9]), r"Entries 7 to 9 are missing"),
        (lambda rows: np.insert(rows, 8, rows[7]), r"Entry 7 comes after entry 7: it is there twice"),
        (swapped, r"Entry 9 .*missing|out of order"),
        (with_value, r"Entry 7 says global_step = 7; it was 5 before, and moved on 1"),
        (with_big_move, r"Entry 7 says global_step = 6; it was 5 before, and moved on 5"),
        (with_refused_index, r"not accepted has index 7"),
        (renumbered, r"Entry 7 says global_step = 7; it was 5 before"),
        (copied, r"was decided twice"),
        (lambda rows: rows[rows["kind"] != EventKind.SNAPSHOT], r"Entry 12 is missing"),
    ],
    ids=["removed", "three removed", "doubled", "swapped", "step", "move", "refused", "renumbered", "copied", "cut"],
)
def test_tampering_is_found_and_named(kept, change, said, capsys):
    rewritten(kept, change)
    found = audit(str(kept))
    assert not found.proven
    assert any(re.search(said, text) for text in found.findings.wrong), found.findings.wrong
    assert main(["audit", str(kept)]) == 1
    assert "NOT PROVEN" in capsys.readouterr().out


def test_a_journal_that_goes_on_beyond_the_checkpoint_is_said_in_words():
    result = Audit(
        checkpoint="runs/a/model.ckpt-20",
        checkpoint_steps={"global_step": 20, "other": 1},
        steps={"global_step": StepProof(0, 25, 25, 25)},
    )
    assert "checkpoint  runs/a/model.ckpt-20: global_step = 20; the journal goes on to global_step = 25" in list(
        _lines("runs/a", result)
    )


def damaged(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [damaged, lambda path: path.write_bytes(path.read_bytes()[:-3])], ids=["bit", "cut"])
def test_a_damaged_file_is_named(kept, damage, capsys):
    (file,) = (kept / "journal").iterdir()
    damage(file)
    assert main(["audit", str(kept)]) == 2
    printed = capsys.readouterr().out
    assert re.search(f"UNREADABLE .*{file.name}", printed)
    assert "NOT PROVEN" in printed


def test_a_newest_checkpoint_that_is_damaged_or_gone_is_named(tmp_path, capsys):
    train(tmp_path, 40)
    assert main(["audit", str(tmp_path)]) == 0
    (shard,) = tmp_path.glob("model.ckpt-40.shard*")
    whole = shard.read_bytes()
    damaged(shard)
    assert main(["audit", str(tmp_path)]) == 2
    assert re.search("UNREADABLE .*model.ckpt-40, which the state file names, is damaged", capsys.readouterr().out)
    shard.write_bytes(whole)
    for path in tmp_path.glob("model.ckpt-40.*"):
        path.rename(tmp_path / ("away-" + path.name))
    assert main(["audit", str(tmp_path)]) == 2
    assert re.search("UNREADABLE .*model.ckpt-40, .* as the newest, is gone", capsys.readouterr().out)
    for path in tmp_path.glob("*model.ckpt-*"):
        path.unlink()
    assert main(["audit", str(tmp_path)]) == 2
    assert "NOT PROVEN" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_that_cannot_show_all_gets_what_it_can_show(tmp_path, monkeypatch, encoding):
    train(tmp_path, 20)
    shown = io.TextIOWrapper(io.BytesIO(), encoding)
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", shown)
        assert main(["audit", str(tmp_path)]) == 0
    shown.flush()
    assert "PROVEN" in shown.buffer.getvalue().decode(encoding)


def test_a_file_of_something_else_is_named(kept, capsys):
    (file,) = (kept / "journal").iterdir()
    with gs.python_io.TFRecordWriter(str(file)) as writer:
        writer.write(b'{"format": "diary", "version": 1}')
    assert main(["audit", str(kept)]) == 2
    assert re.search(f"UNREADABLE .*{file.name}.*diary", capsys.readouterr().out)


def test_a_batch_taken_out_is_missed(kept):
    name = segment_names(str(kept))[0]
    found = read_segment(str(kept), name)
    batch = found.batches[0]
    half = len(batch.rows) // 2
    later = replace(batch, first=half, records=batch.rows[half:].tobytes())
    write_segment(str(kept), name, found.header, [encode_batch(later)])
    wrong = audit(str(kept)).findings.wrong
    assert any(re.search(rf"Gap: {half} records are missing before position {half}", text) for text in wrong), wrong


def test_a_run_without_a_journal_is_unreadable(tmp_path, capsys):
    assert main(["audit", str(tmp_path)]) == 2
    assert "holds no journal" in capsys.readouterr().out


def test_what_is_no_run_directory_is_told_so(tmp_path, capsys):
    file = tmp_path / "train.py"
    file.touch()
    assert main(["audit", str(file)]) == 2
    assert f"{file} is a file. Give the run's directory" in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "nowhere"), "--json"]) == 2
    assert "nowhere is not there. Give the run's directory" in capsys.readouterr().out


def test_an_incarnation_whose_journal_is_gone_is_missed(tmp_path):
    train(tmp_path, 30)
    train(tmp_path, 50)
    first = segment_names(str(tmp_path))[0]
    (tmp_path / "journal" / str(first)).unlink()
    wrong = audit(str(tmp_path)).findings.wrong
    assert any(f"of incarnation {first.incarnation}, of which there is no journal" in text for text in wrong), wrong


def test_a_checkpoint_that_the_journal_does_not_come_to_is_named(tmp_path):
    train(tmp_path, 30, save_steps=10)
    rewritten(tmp_path, lambda rows: rows[:-5])
    wrong = audit(str(tmp_path)).findings.wrong
    assert any(re.search(r"Checkpoint .*model.ckpt-30 was taken after entry .* ends at", text) for text in wrong), wrong


def test_a_checkpoint_that_disagrees_is_named(tmp_path):
    train(tmp_path, 30)

    def other_worker(rows):
        rows["sequence"] += 1000
        return rows

    rewritten(tmp_path, other_worker)
    wrong = audit(str(tmp_path)).findings.wrong
    assert any(re.search(r"Checkpoint .* has push \d+ of client .* the journal has push 1\d+", text) for text in wrong)


def test_a_sequencer_that_comes_back_from_its_log_goes_on_in_the_same_journal(job, tmp_path):
    """As a run with durability="log" does: the new process has the book as of a checkpoint, and what came after."""
    chief = job.begin()
    push(chief, 5)
    chief.journal.catch_up()
    push(chief, 2)
    shard = job.ps.controls[0].handler.shard
    book = shard.now.ledger
    book.journal = Journal("after the restart", book, shard.members.presence.task_of)
    # What the log brings back is written down again, from before where the files end.
    for sequence, index in ((5, 5), (6, 6), (7, 7), (8, 8)):
        steps = {"global_step": index - 1}
        book.journal.accepted(PushId(chief.client_id, sequence), EventKind.PUSH, index, STEP, steps, 0)
    push(chief, 2)
    assert chief.journal.catch_up()
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    assert (found.steps["global_step"].pushes, found.incarnations[0].begin_index) == (9, 0)


def test_a_sequencer_that_has_not_recovered_yet_does_not_end_the_journal(job, tmp_path):
    """With durability="log" it is vacant for a moment, and the same incarnation goes on."""
    chief = job.begin()
    push(chief, 5)
    handler = job.ps.controls[0].handler
    whole, handler.shard = handler.shard, Shard(ManualClock())
    assert not chief.journal.catch_up()
    handler.shard = whole
    push(chief, 2)
    assert chief.journal.catch_up()
    assert audit(str(tmp_path)).steps["global_step"].pushes == 7


def fail_to_fetch(chief, monkeypatch):
    """The journal cannot be fetched from now on."""

    def away(request, deadline_secs):
        raise UnavailableError("No answer.")

    monkeypatch.setattr(chief.run, "read_journal", away)
    assert not chief.journal.catch_up()


def killed_and_back(job, chief, monkeypatch):
    """The sequencer is killed, comes back from its log with the next push, and the journal can be fetched again."""
    control = job.ps.controls[0]
    control.durability.close()
    control.handler.shard = Shard(ManualClock())
    push(chief)
    monkeypatch.undo()
    assert chief.journal.catch_up()


@pytest.mark.parametrize("shards", [1, 2])
def test_a_checkpoint_shortens_the_log_only_as_far_as_the_journal_is_stored(tmp_path, job_of, monkeypatch, shards):
    job = job_of(shards)
    chief = job.begin(policy=RunPolicy(durability="log"))
    push(chief, 5)
    assert chief.journal.catch_up()
    fail_to_fetch(chief, monkeypatch)
    push(chief, 3)
    with chief.snapshot() as cut:
        assert cut.index == 10
    push(chief, 2)
    assert segments_of(tmp_path, shards)[0] == [1, 2]
    killed_and_back(job, chief, monkeypatch)
    assert chief.global_steps() == {"global_step": 11}
    found = audit(str(tmp_path))
    assert found.proven, found.findings
    assert found.steps["global_step"].pushes == 11
    # The next one makes up for it.
    with chief.snapshot():
        assert chief.journal.catch_up()
    assert segments_of(tmp_path, shards)[0] == [4]
    if shards == 2:
        assert segments_of(tmp_path, shards)[1] == [3], "where no journal is written nothing waits for it"


def segments_of(directory, shards):
    """Numbers of the segments of each shard's log."""
    (incarnation,) = (directory / "log").iterdir()
    return [segments_in(incarnation / f"shard-{shard}-of-{shards}") for shard in range(shards)]


def test_what_was_never_fetched_and_left_the_log_is_said_to_be_missing(job, tmp_path, monkeypatch, capsys):
    """A chief that takes its journal for stored shortens the log; where the disk did not keep it, and the sequencer is
    killed, that much is gone: the audit names it, and claims nothing else about it."""
    chief = job.begin(policy=RunPolicy(durability="log"))
    push(chief, 5)
    assert chief.journal.catch_up()
    fail_to_fetch(chief, monkeypatch)
    push(chief, 3)
    with monkeypatch.context() as patched:
        patched.setattr(type(chief.journal), "stored_index", property(lambda keeper: 10))
        with chief.snapshot() as cut:
            assert cut.index == 10
    push(chief, 2)
    killed_and_back(job, chief, monkeypatch)
    assert chief.global_steps() == {"global_step": 11}
    assert main(["audit", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "PROVEN" not in printed.replace("NOT PROVEN", "")
    assert "Entries 7 to 10 are missing" in printed
    found = audit(str(tmp_path))
    assert found.steps["global_step"].pushes == 8
    assert found.steps["global_step"].value == 11
    # Nothing is said of what came before the gap, or after it, but what the gap brings with it.
    assert len(found.findings.wrong) == 3


# ---- Whose journal it is -----------------------------------------------------------------------


def say_run(directory, name, run):
    """Have one file say that it is of another run."""
    segment = read_segment(str(directory), name)
    batches = [encode_batch(batch) for batch in segment.batches]
    write_segment(str(directory), name, replace(segment.header, run=run), batches)


def test_every_file_of_a_journal_says_of_which_run_it_is(tmp_path):
    train(tmp_path, 20)
    train(tmp_path, 40)
    runs = {read_segment(str(tmp_path), name).header.run for name in segment_names(str(tmp_path))}
    assert runs == {json.loads((tmp_path / "globalstep-run.json").read_text())["id"]}
    assert audit(str(tmp_path)).proven


def test_files_of_two_runs_in_one_incarnation_are_named(tmp_path):
    train(tmp_path, 20)
    (name,) = segment_names(str(tmp_path))
    other = replace(name, number=name.number + 1)
    segment = read_segment(str(tmp_path), name)
    write_segment(str(tmp_path), other, replace(segment.header, run="b" * 32), [])
    findings = audit(str(tmp_path)).findings.wrong
    assert any("two runs" in line and str(other) in line and "bbbbbbbb" in line for line in findings), findings


def test_incarnations_of_another_run_in_the_directory_are_named(tmp_path):
    for last_step in (20, 40, 60):
        train(tmp_path, last_step)
    _, second, third = segment_names(str(tmp_path))
    say_run(tmp_path, second, "b" * 32)
    findings = audit(str(tmp_path)).findings.wrong
    assert len(findings) == 1
    assert all(
        part in findings[0] for part in ("two runs", "bbbbbbbb", str(second.incarnation), str(third.incarnation))
    )
    # One that goes back to nothing of the other run: whose files are both in one directory?
    train(tmp_path / "other", 20)
    (alone,) = segment_names(str(tmp_path / "other"))
    for name in (second, third):
        (tmp_path / "journal" / str(name)).unlink()
    (tmp_path / "other" / "journal" / str(alone)).rename(tmp_path / "journal" / str(alone))
    assert any("two runs" in line for line in audit(str(tmp_path)).findings.wrong)


def test_a_run_that_goes_on_under_a_new_identity_is_one_run(tmp_path):
    train(tmp_path, 20)
    (tmp_path / "globalstep-run.json").unlink()
    train(tmp_path, 40)
    runs = {read_segment(str(tmp_path), name).header.run for name in segment_names(str(tmp_path))}
    assert len(runs) == 2
    assert audit(str(tmp_path)).proven
