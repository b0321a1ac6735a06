"""The examples, run as their user runs them (rung 4)."""

from __future__ import annotations

import json
import re

import pytest
from processes import EXAMPLES, ROOT

pytestmark = pytest.mark.processes


def test_the_decayed_rate_prints_the_table_of_the_seed(processes):
    processes.start("decay", EXAMPLES / "exponential_decay.py")
    assert processes.wait() == {"decay": 0}
    lines = processes.output("decay").split()
    table = [0.107177, 0.11487, 0.123114, 0.131951, 0.141421, 0.151572, 0.16245, 0.17411, 0.186607, 0.2]
    assert [round(float(rate), 6) for rate in lines[::2]] == table
    assert lines[1::2] == [str(step) for step in range(1, 11)]


def test_without_global_step_the_rate_stays(processes):
    processes.start("decay", EXAMPLES / "exponential_decay.py", "--without-global-step")
    assert processes.wait() == {"decay": 0}
    assert processes.output("decay").split() == ["0.1", "0"] * 10


def test_the_digits_job_learns_and_leaves_what_it_promises(processes, tmp_path):
    run = tmp_path / "run"
    processes.start(
        "launch", "-m", "globalstep", "launch", "--ps", 2, "--workers", 3,
        EXAMPLES / "digits.py", "--steps", 1500, "--run-dir", run,
    )  # fmt: skip
    assert processes.wait() == {"launch": 0}, processes.output("launch")
    printed = processes.output("launch")
    accuracy = float(re.search(r"test accuracy: ([\d.]+)", printed)[1])
    assert accuracy >= 0.96
    assert "final global step: 1500" in printed
    assert (run / "model.ckpt-1500.index.json").exists()
    assert list(run.glob("events.out.tfevents.*"))


@pytest.fixture
def launch(processes, tmp_path):
    """Launch an example on 2 PS tasks, a chief and a worker to its end, and give what it printed."""

    def launch(example, *options):
        processes.start(
            "launch", "-m", "globalstep", "launch", "--ps", 2, "--workers", 2,
            EXAMPLES / example, "--run-dir", tmp_path / "run", *options,
        )  # fmt: skip
        assert processes.wait()["launch"] == 0, processes.output("launch")
        return processes.output("launch")

    return launch


def number(pattern: str, printed: str) -> float:
    found = re.search(pattern, printed)
    assert found, printed
    return float(found[1])


def test_words_of_one_topic_end_near_each_other(launch):
    printed = launch("word2vec.py", "--steps", 700)
    share = r"share that is of its topic, {}: ([\d.]+)"
    # One in ten by chance.
    assert number(share.format("at first"), printed) < 0.2
    assert number(share.format("now"), printed) > 0.6
    assert "final global step: 700\n" in printed


def test_clicks_on_a_million_ids_are_foretold(launch, tmp_path):
    printed = launch("wide_and_deep.py", "--steps", 300)
    # 0.5 by chance.
    assert number(r"AUC: ([\d.]+)", printed) > 0.66
    assert "final global step: 300\n" in printed
    # Each table was in parts on both PS tasks, and so is what was saved.
    saved = json.loads((tmp_path / "run" / "model.ckpt-300.index.json").read_text())["checkpoint"]["variables"]
    for table in ("wide/weights", "deep/table"):
        assert sorted(part["file"] for part in saved[table]["parts"]) == [0, 1]
        assert sum(part["shape"][0] for part in saved[table]["parts"]) == 1_000_000


def test_clicks_are_learnt_from_files_and_scored_without_globalstep(launch, processes, tmp_path):
    for package in ("torch", "pyarrow"):
        pytest.importorskip(package, reason=f"`pip install torch==2.13.0 pyarrow` runs this test ({package})")
    (tmp_path / "files").mkdir()
    processes.start("write", EXAMPLES / "clicks.py", "files", "--write")
    assert processes.wait() == {"write": 0}, processes.output("write")
    # Without a step 0.5; 0.81 after 440.
    assert number(r"test AUC: ([\d.]+)", launch("clicks.py", "files", "--steps", 100)) > 0.7
    assert "restored" in launch("clicks.py", "files", "--steps", 120)
    page = (ROOT / "docs" / "clicks.md").read_text().replace("runs/clicks", "run").replace("data/clicks", "files")
    export, score = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, text in (("export", export), ("score", score)):
        (tmp_path / f"{name}.py").write_text(text)
        processes.start(name, f"{name}.py", env={"PYTHONPATH": str(EXAMPLES)})
        assert processes.wait()[name] == 0, processes.output(name)
    assert 0 < number(r"tensor\(\[([\d.]+)\]", processes.output("score")) < 1


def test_digits_come_from_files_by_queues(launch):
    printed = launch("input_queues.py", "--steps", 600)
    # A quarter of 1,797, each once.
    assert "test images read: 450\n" in printed
    assert number(r"test accuracy: ([\d.]+)", printed) > 0.93
    assert "final global step: 600\n" in printed


def test_digits_by_local_steps_in_int8(launch):
    printed = launch("local_digits.py", "--steps", 20, "--together", 2)
    # 0.97 after 60.
    assert number(r"test accuracy: ([\d.]+)", printed) > 0.85
    assert "final global step: 20\n" in printed


def test_digits_in_work_units_end_at_their_step(launch):
    printed = launch("unit_digits.py", "--steps", 60)
    assert number(r"test accuracy: ([\d.]+)", printed) > 0.8
    assert "final global step: 60\n" in printed
    assert re.search(r"digest: [0-9a-f]{16}\n", printed)
