"""A real Slurm on this machine for tests: munged, slurmctld and four slurmd, all in a scratch folder.

They are on loopback, or each slurmd on a host of its own (`hosts.py`), whose link can be cut.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from hosts import Hosts
from processes import free_addresses, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
NODES = 4
CONF = """
ClusterName=test
SlurmctldHost={host}({address})
SlurmctldPort={ports[0]}
SlurmUser=root
FirstJobId={first_job}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock,cred_expire=5
CredType=cred/munge
{binding}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
SchedulerParameters=sched_interval=1,bf_interval=5
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
PartitionName=debug Nodes=node[1-4] Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Say why Slurm cannot run here; "" if it can."""
    if os.geteuid():
        return "several slurmd on one machine need root"
    path = os.environ["PATH"] + ":/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)" if missing else ""


class Slurm:
    """A running Slurm; its commands are for `environ`, after `by`: they run where slurmctld does."""

    def __init__(self, folder: Path, by: Sequence[str] = ()) -> None:
        self.by = list(by)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
            "PATH": os.environ["PATH"] + ":/usr/sbin",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def output(self, *command: object) -> str:
        """Run one of Slurm's commands; gives what it prints."""
        return subprocess.run(
            [*self.by, *map(str, command)], env=self.environ, check=True, capture_output=True, text=True, timeout=30
        ).stdout

    def nodes(self) -> dict[str, str]:
        """Give the state of each node."""
        return dict(line.split() for line in self.output("sinfo", "-h", "-N", "-o", "%N %T").splitlines())


@contextlib.contextmanager
def slurm(folder: Path, network: Hosts | None = None) -> Iterator[Slurm]:
    """Run a Slurm in a folder until the end of the block; node1 is host 1, and so on, slurmctld on host 1 too."""
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir()
    for one in (folder, folder / "munge"):
        one.chmod(0o711)
    (folder / "munge/key").write_bytes(os.urandom(128))
    (folder / "munge/key").chmod(0o600)
    ports = [address.rpartition(":")[2] for address in free_addresses(NODES + 1)]
    host = socket.gethostname()
    addresses = ["127.0.0.1" if network is None else network.address(max(1, i)) for i in range(NODES + 1)]
    by = [[] if network is None else network.by(max(1, i)) for i in range(NODES + 1)]
    nodes = [
        f"NodeName=node{i} NodeHostname={host} NodeAddr={addresses[i]} Port={ports[i]} CPUs=4 RealMemory=2000 "
        "State=UNKNOWN"
        for i in range(1, NODES + 1)
    ]
    # Several Slurms at once give their jobs other ids, and so other ports.
    # A host of its own may be listened to on all of its addresses; this machine may not.
    binding = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if network is None else ""
    conf = CONF.format(
        host=host, address=addresses[0], binding=binding, first_job=os.getpid(), ports=ports, folder=folder
    )
    (folder / "slurm.conf").write_text(conf + "\n".join(nodes) + "\n")
    running = Slurm(folder, by[0])
    munge = [f"--{name}={folder}/munge/{file}" for name, file in (("key-file", "key"), ("socket", "sock"))]
    munge += [f"--{name}={folder}/munge/{file}" for name, file in (("pid-file", "pid"), ("seed-file", "seed"))]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_daemon(running, folder, [], "munged", "--foreground", "--force", *munge))
        until(lambda: (folder / "munge/sock").exists(), "munged serves")
        stack.enter_context(_daemon(running, folder, by[0], "slurmctld", "-D", "-c"))
        for i in range(1, NODES + 1):
            stack.enter_context(_daemon(running, folder, by[i], "slurmd", "-D", "-N", f"node{i}"))
        until(lambda: list(running.nodes().values()) == ["idle"] * NODES, "all nodes are idle")
        try:
            yield running
        finally:
            cancel = [*running.by, "scancel", "--full", "--user=root"]
            subprocess.run(cancel, env=running.environ, check=False, timeout=30)
            until(lambda: not running.output("squeue", "-h"), "all jobs have ended")


@contextlib.contextmanager
def _daemon(running: Slurm, folder: Path, by: Sequence[str], *command: str) -> Iterator[None]:
    with (folder / f"{command[0]}-{command[-1]}.log".replace("/", "-")).open("wb") as log:
        process = subprocess.Popen([*by, *command], env=running.environ, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
