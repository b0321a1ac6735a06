"""Models of other frameworks, and the job with two steps, as their user runs them (rung 4)."""

from __future__ import annotations

import importlib.util
import re

import pytest
from processes import EXAMPLES, Processes

pytestmark = pytest.mark.processes

STEPS = 1500


@pytest.fixture
def launch(tmp_path):
    """Launch an example to its end and give what it printed."""

    def launch(example, *options, ps=2, workers=2):
        with Processes(tmp_path) as processes:
            processes.start(
                "launch", "-m", "globalstep", "launch", "--ps", ps, "--workers", workers,
                EXAMPLES / example, "--run-dir", tmp_path / "run", *options,
            )  # fmt: skip
            codes = processes.wait(60)
            printed = processes.output("launch")
        assert codes == {"launch": 0}, printed
        return printed

    return launch


def number(pattern: str, printed: str) -> float:
    found = re.search(pattern, printed)
    assert found, printed
    return float(found[1])


def needs(module: str, install: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed; `pip install {install}`"
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("torch", marks=needs("torch", "torch==2.13.0")),
        pytest.param("jax", marks=needs("jax", "jax")),
        "py_loss",
    ],
)
def test_the_digits_job_learns_with_a_model_of_another_framework(launch, name, tmp_path):
    printed = launch(f"{name}_digits.py", "--steps", STEPS)
    assert number(r"test accuracy: ([\d.]+)", printed) >= 0.95
    assert f"final global step: {STEPS}\n" in printed
    assert (tmp_path / "run" / f"model.ckpt-{STEPS}.index.json").exists()


@needs("torch", "torch==2.13.0")
def test_torch_and_numpy_train_the_same_variables_together(launch):
    steps = 4 * STEPS  # long enough for a worker that comes up late to have a share
    printed = launch("mixed_digits.py", "--steps", steps)
    assert "[worker:0] computing with torch_digits" in printed
    assert "[worker:1] computing with py_loss_digits" in printed
    by_torch = number(r"\[worker:0\] batches computed here: (\d+)", printed)
    by_numpy = number(r"\[worker:1\] batches computed here: (\d+)", printed)
    # Each had a share, and every batch moved the step on by one, apart from those that came after the end.
    assert min(by_torch, by_numpy) >= 10
    assert steps <= by_torch + by_numpy <= steps + 2
    assert number(r"test accuracy: ([\d.]+)", printed) >= 0.95
    assert f"final global step: {steps}\n" in printed


def test_both_steps_of_a_gan_end_as_configured(launch):
    printed = launch("gan.py", "--steps", 200, "--d-steps", 3, workers=1)
    assert "final G_global_step: 200\n" in printed
    assert "final D_global_step: 600\n" in printed
    at_first = number(r"distance of the samples from the data: ([\d.]+) at first", printed)
    now = number(r"at first, ([\d.]+) now", printed)
    assert now < at_first / 4


def test_several_workers_share_the_two_steps_of_a_gan(launch):
    workers, d_steps = 3, 2
    printed = launch("gan.py", "--steps", 150, "--d-steps", d_steps, ps=1, workers=workers)
    assert "final G_global_step: 150\n" in printed
    # The rounds of the other workers whose generator update came too late.
    assert 300 <= number(r"final D_global_step: (\d+)", printed) <= 300 + (workers - 1) * d_steps
