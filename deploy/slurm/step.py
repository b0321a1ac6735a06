"""Step of a Slurm job: one task of a cluster, started on its node, asked to end kindly, and its true exit code.

srun alone does not do: a SIGTERM makes it kill the task at once, and when the task's node is lost it ends with 0.

Layer: deploy. One thread; only the standard library and Slurm's commands are needed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_LOST = 128 + signal.SIGKILL
#: How long to wait for the signal that comes with the end of the job.
_ENDING_SECS = 30
#: A line that the task's shell prints last, so that its end can be distinguished from its node's.
_MARK = "\x1eglobalstep step ended "
_SHELL = f"""trap : TERM INT; "$@"; code=$?; printf '\\n{_MARK}%s\\n' $code; exit $code"""


def choose_node(node: str, up: Sequence[str], stay: bool) -> str:
    """Choose the node for a task.

    Args:
        node: Where it was, or is to be.
        up: The nodes that the job has now.
        stay: Whether it can run on no other.

    >>> choose_node("n3", ["n1", "n2"], stay=False)
    'n2'
    """
    if node in up:
        return node
    if stay or not up:
        return ""
    # Not the first, which has the batch script and the chief already.
    return up[-1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the task to its end; gives its exit code."""
    parser = argparse.ArgumentParser(prog="python -m globalstep.deploy.slurm.step", description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="of the step")
    parser.add_argument("--node", required=True, help="where to run it")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--stay", action="store_true", help="it can run on no other node")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    job = os.environ["SLURM_JOB_ID"]
    state, nodes = _job_now(job)
    if state != "RUNNING":
        # Requeued or cancelled: all tasks have been asked to end, and the launcher hears of it in a moment.
        signal.sigtimedwait([signal.SIGTERM], _ENDING_SECS)
        return EXIT_TERMINATED
    node = choose_node(args.node, nodes, args.stay)
    if not node:
        print(f"node {args.node} is lost, and {args.name} can run on no other: the job begins again", flush=True)
        if subprocess.run(["scontrol", "requeue", job], check=False).returncode:
            return 1
        signal.sigtimedwait([signal.SIGTERM], _ENDING_SECS)
        return EXIT_TERMINATED
    if node != args.node:
        print(f"node {args.node} is lost: {args.name} runs on {node} now", flush=True)
    return _run_step(
        job,
        args.name,
        ["srun", "--no-kill", "--exact", "--overlap", "--input=none", "-N1", "-n1", f"-c{args.cpus}", f"-w{node}"],
        args.command,
    )


def _run_step(job: str, name: str, srun: list[str], command: list[str]) -> int:
    """Run a step to its end; gives the exit code of its task."""

    def on_term(signum: int, frame: FrameType | None) -> None:
        # Where the whole job ends, Slurm has asked the task already, and twice would end it at once.
        if _job_now(job)[0] != "RUNNING":
            return
        listed = _output("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j")
        for line in listed.splitlines():
            step, _, its_name = line.strip().partition(" ")
            if its_name.strip() == name:
                subprocess.run(["scancel", "--signal=TERM", step], check=False)

    process = subprocess.Popen(
        [*srun, f"--job-name={name}", "sh", "-c", _SHELL, "sh", *command],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        # The launcher's signals are for this process: a SIGTERM to srun would kill the task.
        start_new_session=True,
        # This process takes the signal only once there is a step to pass it to.
        preexec_fn=_unblock,
    )
    signal.signal(signal.SIGTERM, on_term)
    _unblock()
    code_of_task: int | None = None
    assert process.stdout is not None
    blank = b""
    for line in process.stdout:
        if line.startswith(_MARK.encode()):
            code_of_task = int(line.removeprefix(_MARK.encode()))
            # The empty line before it is the shell's too.
            blank = b""
            continue
        sys.stdout.buffer.write(blank + (b"" if line == b"\n" else line))
        sys.stdout.buffer.flush()
        blank = line if line == b"\n" else b""
    sys.stdout.buffer.write(blank)
    sys.stdout.buffer.flush()
    code = process.wait()
    if code_of_task is not None:
        return code_of_task
    if code == 0:
        print(f"the node of {name} is lost", flush=True)
        return EXIT_LOST
    return 128 - code if code < 0 else code


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def _job_now(job: str) -> tuple[str, list[str]]:
    """Give the job's state and the nodes that it has."""
    state, _, nodes = _output("squeue", "--noheader", f"--jobs={job}", "--format=%T %N").strip().partition(" ")
    return state, expand_hosts(nodes) if nodes else []


def expand_hosts(names: str) -> list[str]:
    """Give the hosts of Slurm's short form, "gpu[01-03,7],login"."""
    return _output("scontrol", "show", "hostnames", names).split()


def _output(*command: str) -> str:
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
