"""Hosts: network namespaces on one switch, whose links may be slow and pass so many bits a second. Root only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

__all__ = ["Hosts", "throttled_hosts", "why_not"]


def why_not(megabits: int | None = 100) -> str:
    """Say why there can be no such hosts here; "" if there can. Arguments are those of throttled_hosts."""
    if os.geteuid():
        return "network namespaces need root"
    missing = [name for name in ("ip", *(["tc"] if megabits else []), "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: iproute2, util-linux)"
    try:
        with throttled_hosts(1, megabits):
            return ""
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` fails here"


def _call(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True, timeout=30, stderr=subprocess.DEVNULL)


class Hosts:
    """Hosts 0, 1, ...; each reaches the others over its own link and the switch."""

    def __init__(self, switch: str) -> None:
        self._switch = switch

    def address(self, host: int) -> str:
        """The IP address of a host."""
        return f"10.78.0.{host + 1}"

    def by(self, host: int) -> list[str]:
        """What to put before a command that is to run on a host."""
        return ["nsenter", f"--net=/run/netns/{self._switch}h{host}"]


@contextlib.contextmanager
def throttled_hosts(count: int, megabits: int | None) -> Iterator[Hosts]:
    """Make hosts until the end of the block; what runs on them must have ended by then.

    Args:
        count: How many.
        megabits: That each link passes in a second, each way; None for as many as it can.
    """
    switch = f"gst{os.getpid()}"
    # A short burst, else small messages pass for nothing; a short queue, else acknowledgements wait behind data.
    shape = ["tbf", "rate", f"{megabits}mbit", "burst", "32kb", "limit", "300kb"]
    with contextlib.ExitStack() as stack:

        def add(name: str) -> None:
            _call("ip", "netns", "add", name)
            stack.callback(_call, "ip", "netns", "delete", name)
            _call("ip", "-n", name, "link", "set", "lo", "up")

        add(switch)
        _call("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _call("ip", "-n", switch, "link", "set", "br0", "up")
        made = Hosts(switch)
        for i in range(count):
            name = f"{switch}h{i}"
            add(name)
            _call("ip", "-n", switch, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _call("ip", "-n", switch, "link", "set", f"p{i}", "master", "br0", "up")
            _call("ip", "-n", name, "address", "add", f"{made.address(i)}/24", "dev", "eth0")
            _call("ip", "-n", name, "link", "set", "eth0", "up")
            if megabits is not None:
                _call("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *shape)
                _call("tc", "-n", switch, "qdisc", "add", "dev", f"p{i}", "root", *shape)
        yield made
