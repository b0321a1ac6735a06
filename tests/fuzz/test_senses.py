"""Each sense of the fuzzer finds a bug that is planted for it, and says nothing without."""

from __future__ import annotations

import logging
import random
from collections import Counter

import fuzz_senses
import numpy as np
import pytest
from fuzz_bombs import BombTargets
from fuzz_choices import Finding
from fuzz_silence import SilenceTargets
from fuzz_task import TaskTargets

from globalstep import rules
from globalstep.chief.journal import journal_files
from globalstep.ps.access.authorization import METHODS, Authorization, Role
from globalstep.ps.service import handler, packed_data, slow_senders
from globalstep.ps.service.control import Control
from globalstep.ps.store import arena, checking, optimizer_table, store
from globalstep.ps.store.store import VariableStore
from globalstep.rules import compiled, get_rule
from globalstep.wire import codec
from globalstep.wire.declarations import Increment

#: More than a planted bug needs; none takes as many.
MOST = 6000


@pytest.fixture
def targets(monkeypatch):
    monkeypatch.setattr(checking, "available_bytes", checking.available_bytes)  # the targets give it another value
    logging.disable(logging.CRITICAL)
    made = [TaskTargets(Counter()), SilenceTargets(Counter()), BombTargets(Counter())]
    yield {
        "data_plane": made[0].data_plane,
        "control": made[0].control,
        **made[1].targets,
        **made[2].targets,
        "renew": made[0].renew,
    }
    for one in made:
        one.close()
    logging.disable(logging.NOTSET)


def found(targets, *names, most=MOST):
    """What is found first, by these targets in turn."""
    targets["renew"]()
    for seed in range(most):
        try:
            targets[names[seed % len(names)]](random.Random(seed))
        except Finding as finding:
            return str(finding)
    return ""


@pytest.mark.long
def test_nothing_is_found_where_no_bug_was_planted(targets):
    assert found(targets, "data_plane", "control", "silence", most=1500) == ""
    assert found(targets, *(name for name in targets if name.startswith("bomb")), most=40) == ""


@pytest.mark.parametrize("method", ["Open", "Settle"])
def test_roles_a_method_that_workers_may_call(targets, monkeypatch, method):
    monkeypatch.setitem(METHODS, method, METHODS[method] | {Role.WORKER})
    assert f"a worker may not {method}" in found(targets, "control")


def test_roles_a_request_that_workers_may_send(targets, monkeypatch):
    monkeypatch.setattr(Authorization, "_check_snapshots", lambda self, caller, kind, message: None)
    monkeypatch.setattr(Authorization, "_check_id", lambda self, caller, what, client: None)
    monkeypatch.setattr(fuzz_senses, "BOUND", ())  # of these it would be said first
    monkeypatch.setattr(fuzz_senses, "OWNER", "nobody")
    assert "may not take or read a snapshot" in found(targets, "data_plane")


def test_roles_ids_that_are_bound_to_nobody(targets, monkeypatch):
    monkeypatch.setattr(Authorization, "_check_id", lambda self, caller, what, client: None)
    assert "in the name of" in found(targets, "data_plane", "control")


@pytest.mark.long
def test_declare_then_use_a_slot_of_any_size(targets, monkeypatch):
    """Nobody compares slots with their Variables: kernels read and write behind them."""
    monkeypatch.setattr(optimizer_table, "check_slot", lambda *a: None)
    monkeypatch.setattr(store, "check_slot", lambda *a: None, raising=False)
    monkeypatch.setattr(compiled, "check_alike", lambda *a, **k: None)
    monkeypatch.setattr(arena, "check_alike", lambda *a, **k: None)
    assert found(targets, "control", "data_plane", most=MOST)


@pytest.mark.long
def test_canaries_a_kernel_that_goes_one_too_far(targets, monkeypatch):
    class Beyond(type(get_rule("gradient_descent"))):
        def dense(self, values, slots, grad, hyper):
            np.lib.stride_tricks.as_strided(values, (values.size + 1,), values.strides)[-1] = 7

    monkeypatch.setitem(rules._loaded, "gradient_descent", Beyond())
    said = found(targets, "control", "data_plane", most=MOST)
    assert "beyond an array" in said or "which it does not name" in said


def test_the_model_an_assignment_that_is_none(targets, monkeypatch):
    was = VariableStore._operand

    def wrong(self, op, held):
        value = was(self, op, held)
        return value + 1 if np.ndim(value) == 1 and value.dtype == np.float32 else value

    monkeypatch.setattr(VariableStore, "_operand", wrong)
    assert "an accepted push left" in found(targets, "data_plane")


def test_the_model_a_pull_of_something_else(targets, monkeypatch):
    was = store.copies
    monkeypatch.setattr(store, "copies", lambda sources, buffer: [one * 2 for one in was(sources, buffer)])
    assert "a pull of" in found(targets, "data_plane")


def test_the_model_a_step_that_moves_by_more(targets, monkeypatch):
    was = handler.decision_of

    def doubled(*args):
        increments, uses = was(*args)
        return [Increment(one.step, 2 * one.by) for one in increments], uses

    monkeypatch.setattr(handler, "decision_of", doubled)
    assert "step step went from" in found(targets, "data_plane")


def test_amplification_eight_bytes_that_are_worth_many(targets, monkeypatch):
    monkeypatch.setattr(packed_data, "_MOST_TIMES", 1 << 40)
    assert "took more memory" in found(targets, "data_plane")


def test_silence_nobody_is_cut(targets, monkeypatch):
    monkeypatch.setattr(slow_senders, "_BYTES_PER_SEC", 1)
    assert "and stays" in found(targets, "silence")


def test_silence_everybody_is_cut(targets, monkeypatch):
    monkeypatch.setattr(slow_senders, "GRACE_SECS", 0.0)
    monkeypatch.setattr(slow_senders, "_BYTES_PER_SEC", 1 << 30)
    assert "was cut" in found(targets, "silence")


@pytest.mark.long
def test_memory_that_changes_rows_that_are_checked_where_they_lie(targets, monkeypatch):
    monkeypatch.setattr(codec, "_unpacked", lambda ref, data: codec.decode_tensor(ref, data))

    def wrong_rows(rule, values, slots, op, hyper):
        # What a kernel would do with them: write wherever they say.
        if op.indices is not None and ((op.indices < 0) | (op.indices >= values.shape[0])).any():
            raise Finding("rows beyond their Variable")

    monkeypatch.setattr(store, "apply_rows", wrong_rows)
    assert "rows beyond" in found(targets, "data_plane", most=4 * MOST)


@pytest.mark.long
def test_bombs_a_journal_without_limit(targets, monkeypatch):
    monkeypatch.setattr(journal_files, "_MOST_SEGMENT_RECORDS", 1 << 40)
    assert "took more memory" in found(targets, "bomb_journal", most=200)


def test_http2_a_server_that_is_busy_with_strangers(targets, monkeypatch):
    monkeypatch.setattr(Control, "status", lambda *args: 1 / 0, raising=False)
    monkeypatch.setattr(Control, "call", lambda *args: 1 / 0)
    assert "after frames of HTTP/2" in found(targets, "http2", most=300)
