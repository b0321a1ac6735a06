"""The checker of histories: it accepts what can have happened, and refuses what cannot (rung 1)."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from globalstep.deploy.audit import history_checker
from globalstep.deploy.audit.history_checker import BadHistoryError, judge

FILE = Path(history_checker.__file__).resolve()
NAMES = ["u", "v", "w"]
#: What may be wrong -> what the checker says.
BUGS = {
    **dict.fromkeys(("dropped", "doubled", "swapped", "torn", "unknown twice"), "makes"),
    "stale": "shows what was before|makes",
    "given twice": "Two pushes were given entry",
    "step back": "it went back",
    "step of nobody": "which no push had made",
    "old incarnation": "which was over",
    "too far": "and the limit is",
    "too late": "may lag by",
    "not durable": "was to be durable",
}


class Run:
    """A run of some clients as it should be, but for one bug somewhere in its middle half.

    Attributes:
        events: What its clients saw.
    """

    def __init__(self, seed, operations=200, bug=""):
        self._rng, self.bug, self._time = random.Random(seed), bug, 0.0
        self._unknown = 8 / operations  # how often a client does not hear what becomes of a push
        self._when = self._rng.randrange(operations // 4, 3 * operations // 4)
        limit = operations * 2 if bug != "too far" else self._when // 4
        rules = {"limit": {"global_step": limit}, "max_staleness": 40, "durable": bug == "not durable"}
        self.events = [{"f": "run", "value": rules}]
        self._states, self.incarnation = [dict.fromkeys(["global_step", *NAMES], 0)], 0
        self._begin(None)
        started, busy, restore = 0, {}, self._rng.randrange(operations // 4, operations)
        while started < operations or busy:
            process = f"worker {self._rng.randrange(5)}"
            if process in busy:
                self._go_on(process, busy, busy[process])
            elif started < operations:
                started += 1
                busy[process] = self._invoke(process)
            if bug and started > self._when:
                self._act()
            elif started > restore:
                restore = operations
                self._restore(busy)
        self._event("chief", "invoke", "read", {"incarnation": self.incarnation})
        self._event("chief", "ok", "read", {"read": self._states[-1]})

    def _event(self, process, kind, f, value):
        self._time += 0.25
        self.events.append({"process": process, "type": kind, "f": f, "time": self._time, "value": value})

    def _begin(self, source):
        self.incarnation += 1
        self._event("chief", "invoke", "begin", {})
        self._event("chief", "ok", "begin", {"incarnation": self.incarnation, "from": source})
        start = {"incarnation": self.incarnation, "set": self._states[-1]}
        self._event("chief", "invoke", "push", start)
        self._states.append(self._states[-1])
        self._event("chief", "ok", "push", {"index": len(self._states) - 1})

    def _restore(self, busy):
        """All go back to a checkpoint; what is under way is unknown."""
        index = self._rng.randrange(len(self._states) - 10, len(self._states))
        for process, (f, *_) in busy.items():
            self._event(process, "info", f, {})
        busy.clear()
        del self._states[index + 1 :]
        self._begin([self.incarnation, index])

    def _invoke(self, process):
        f = self._rng.choices(["push", "read", "look"], [6, 3, 1])[0]
        given = {"incarnation": self.incarnation}
        if f == "push":
            given["add"] = {"global_step": 1, self._rng.choice(NAMES): self._rng.choice([1, 0.5, 4])}
            given["seen"] = {"global_step": self._states[-1]["global_step"]}
        self._event(process, "invoke", f, given)
        return f, given, None

    def _go_on(self, process, busy, operation):
        f, given, told = operation
        if told is not None:
            del busy[process]
            unknown = f == "push" and self._rng.random() < self._unknown
            self._event(process, "info" if unknown else "ok", f, {} if unknown else told)
        elif f == "push" and self._rng.random() < self._unknown / 2:
            del busy[process]
            self._event(process, "info", f, {})  # it never counts
        elif f == "push":
            state = self._add(given["add"])
            busy[process] = f, given, {"index": len(self._states) - 1, "read": {"global_step": state["global_step"]}}
        else:
            names = ["global_step"] if f == "look" else self._states[-1]
            busy[process] = f, given, {"read": {name: self._states[-1][name] for name in names}}

    def _add(self, by, times=1):
        state = {name: value + times * by.get(name, 0) for name, value in self._states[-1].items()}
        self._states.append(state)
        return state

    def _act(self):
        """Have the bug show."""
        bug, self.bug = self.bug, ""
        add, last = {"global_step": 1, "u": 2.0}, len(self._states) - 1
        given = {"incarnation": self.incarnation, "add": add}
        old, now = self._states[-9], self._states[-1]
        step = now["global_step"]
        if bug in ("dropped", "doubled"):
            self._one("push", given, {"index": last + 1, "read": {"global_step": step + 1}})
            self._add({"u": 2.0}, times=2 * (bug == "doubled"))
            self._states[-1]["global_step"] += 1
        elif bug == "swapped":
            self._event("a", "invoke", "push", given)
            self._one("push", given, {"index": last + 1, "read": {"global_step": step + 2}})
            self._event("a", "ok", "push", {"index": last + 2, "read": {"global_step": step + 1}})
            self._states += [self._states[-1]] * 2
        elif bug == "stale":
            self._one("read", given, {"read": old})
        elif bug == "torn":
            self._one("read", given, {"read": {**now, "u": now["u"] + 16.0}})
        elif bug == "given twice":
            for _ in range(2):
                self._one("push", given, {"index": last + 1})
        elif bug == "unknown twice":
            self._event("a", "invoke", "push", {**given, "add": {**add, "u": 1024.0}})
            self._add({**add, "u": 1024.0})
            self._add({**add, "u": 1024.0})
        elif bug in ("step back", "step of nobody"):
            self._one("look", given, {"read": {"global_step": step}})
            self._one("look", given, {"read": {"global_step": step - 1 if bug == "step back" else step + 50}})
        elif bug == "old incarnation":
            before = self.incarnation
            self._begin([before, last])
            self._one("read", {"incarnation": before}, {"read": now})
        elif bug == "too late":
            self._add(add)
            given["seen"] = {"global_step": step - 41}
            self._one("push", given, {"index": last + 1, "read": {"global_step": step + 1}})
        elif bug == "not durable":
            self._one("push", given, {"index": last + 1})
            self._begin([self.incarnation, last])

    def _one(self, f, given, told):
        self._event("b", "invoke", f, given)
        self._event("b", "ok", f, told)


@pytest.mark.parametrize("seed", range(12))
def test_what_can_have_happened_is_proven(seed):
    judgement = judge(Run(seed).events)
    assert judgement.wrong == ""


@pytest.mark.parametrize("bug", BUGS)
def test_what_cannot_have_happened_is_refused(bug):
    for seed in range(12):
        judgement = judge(Run(seed, bug=bug).events)
        assert any(said in judgement.wrong for said in BUGS[bug].split("|")), (seed, judgement)
        assert list(judgement.lines())[-1] == "NOT PROVEN"
        assert 1 <= len(judgement.operations) <= 2


@pytest.mark.long
@pytest.mark.parametrize("bug", ["", "dropped", "doubled", "stale", "unknown twice"])
def test_a_hundred_thousand_operations_are_judged(bug):
    assert bool(judge(Run(7, 100_000, bug).events).wrong) == bool(bug)


def test_it_runs_in_a_python_that_has_no_globalstep(tmp_path):
    imported = re.findall(r"^ *(?:from|import) (\w+)", FILE.read_text(), re.MULTILINE)
    assert set(imported) <= sys.stdlib_module_names
    for bug, code, said in (("", 0, "\nPROVEN\n"), ("doubled", 1, "WRONG       The ")):
        history = tmp_path / f"history{bug}.jsonl"
        history.write_text("".join(json.dumps(event) + "\n" for event in Run(1, bug=bug).events))
        done = subprocess.run(
            [sys.executable, "-I", "-S", FILE, history], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert (done.returncode, done.stderr) == (code, "")
        assert said in done.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [({"number": 1}, "Push 1 of client a was decided twice"), ({"index": 3}, "Entry 2 is missing"),
     ({"read": {"u": 5}}, "Entry 2 says u = 5; it was 1 before, and moved on 1"), ({}, "")],
)  # fmt: skip
def test_a_journal_is_judged_by_itself(change, said):
    entries = [{"incarnation": 1, "index": at, "client": "a", "number": at, "add": {"u": 1}, "read": {"u": at}}
               for at in (1, 2)]  # fmt: skip
    events = [{"f": "entry", "value": entry} for entry in (entries[0], {**entries[1], **change})]
    wrong = judge([*events, {"f": "look", "type": "invoke", "process": "b", "time": 0}]).wrong
    assert wrong.partition(" (")[0] == said


def test_where_an_incarnation_goes_back_to_is_known_though_a_push_may_have_counted_before_or_after():
    """A chief restored, pushed, and never heard what became of that: entry 1 was its restore, and 2 its push."""

    def event(process, kind, value):
        return {"process": process, "type": kind, "f": "push", "time": 1, "value": value}

    begins = [{"incarnation": 1, "read": {"u": 0}}, {"incarnation": 2, "from": [1, 1], "read": {"u": 0}}]
    entry = {"incarnation": 1, "index": 1, "client": "a", "number": 1, "add": {}, "read": {"u": 0}, "set": {"u": 0}}
    push = {"incarnation": 1, "add": {"u": 1}}
    events = [{"f": "begin", "value": value} for value in begins] + [{"f": "entry", "value": entry}]
    events += [event("a", "invoke", push), event("b", "invoke", push)]
    assert judge([*events, event("b", "ok", {"index": 3, "read": {"u": 2}})]).wrong == ""


@pytest.mark.parametrize(("shown", "wrong"), [(3, ""), (0, "shows what was before"), (6, "makes")])
def test_the_last_entry_of_an_incarnation_may_close_a_step_and_no_client_is_told_its_number(shown, wrong):
    """The one contribution that came was entry 1, its step entry 2; then the PS tasks were lost."""
    part = {"incarnation": 1, "add": {"u": 3}, "part": {"step": "s", "base": 0, "of": 2}}
    seen = {"index": 1, "then": {"u": shown}, "from": {"s": 1}}
    push = [{"process": "a", "type": "invoke", "f": "push", "time": 0, "value": part},
            {"process": "a", "type": "ok", "f": "push", "time": 1, "value": seen}]  # fmt: skip
    judged = judge([{"f": "begin", "value": {"incarnation": 1, "read": {"s": 0, "u": 0}}}, *push]).wrong
    assert wrong in judged
    assert bool(judged) == bool(wrong)


@pytest.mark.parametrize(("pushed", "wrong"), [(2, ""), (9, "which was over")])
def test_an_incarnation_that_was_lost_before_it_was_opened_may_have_a_greater_number_than_the_next(pushed, wrong):
    """Nobody but its chief knew of incarnation 9; then all tasks were lost, and the clocks of the PS tasks set back."""
    events = []
    for at, (process, f, given, told) in enumerate(
        [
            ("chief", "begin", {}, {"incarnation": 1, "from": None}),
            ("chief", "begin", {}, {"incarnation": 9, "from": [1, 0]}),
            ("chief", "begin", {}, {"incarnation": 2, "from": [1, 0]}),
            ("worker", "push", {"incarnation": pushed, "add": {"u": 1}}, {"index": 1, "read": {"u": 1}}),
        ]
    ):
        events.append({"process": process, "type": "invoke", "f": f, "time": 2 * at, "value": given})
        events.append({"process": process, "type": "ok", "f": f, "time": 2 * at + 1, "value": told})
    assert wrong in judge(events).wrong
    assert bool(judge(events).wrong) == bool(wrong)


def test_what_is_no_history_is_not_proven(tmp_path, capsys):
    broken = tmp_path / "broken.jsonl"
    for text, said in (
        ("", "There is no operation"),
        ("{", "broken.jsonl, line 1"),
        ('{"f": "push", "type": "invoke", "time": 1}', "is no event: KeyError('process')"),
        ('{"f": "push", "type": "ok", "time": 1, "process": "a"}', "a ended a push as 'ok' at 1.000000 s"),
        ('{"f": "sing"}', "There is no operation 'sing'"),
    ):
        broken.write_text(text)
        assert history_checker.main([str(broken)]) == 2
        assert said in capsys.readouterr().out


def test_too_much_that_is_unknown_is_not_proven():
    events = [{"process": f"worker {at}", "type": "invoke", "f": "push", "time": 0,
               "value": {"incarnation": 1, "add": {"u": 2**at}}} for at in range(14)]  # fmt: skip
    last = {"process": "a", "type": "invoke", "f": "push", "time": 1, "value": {"incarnation": 1}}
    with pytest.raises(BadHistoryError, match="Too much is unknown"):
        judge([{"f": "begin", "value": {"incarnation": 1, "read": {"u": 0}}}, *events, last,
               {**last, "type": "ok", "time": 2, "value": {"index": 20}}])  # fmt: skip
