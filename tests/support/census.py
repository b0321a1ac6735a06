"""What a job of examples/census.py leaves that is done, whatever was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from processes import EXAMPLES

import globalstep as tf
from globalstep.deploy.cli import main


def assert_done(run_dir: Path, last_step: int, capsys) -> None:
    """Check that each push counted once, and that the last checkpoint was evaluated, and exported as what predicts."""
    assert main(["audit", str(run_dir)]) == 0
    proof = capsys.readouterr().out
    assert f"global_step = {last_step} = " in proof
    assert "PROVEN\n" in proof
    assert tf.train.latest_checkpoint(str(run_dir)) == str(run_dir / f"model.ckpt-{last_step}")
    evaluated = tf.contrib.estimator.read_eval_metrics(str(run_dir / "eval"))
    assert max(evaluated) == last_step
    assert evaluated[last_step]["accuracy"] > 0.8
    command = [sys.executable, EXAMPLES / "census.py", "--score", "--run-dir", run_dir]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.removeprefix("accuracy of the export: ")) > 0.8
