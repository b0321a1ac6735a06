"""Hosts for tests: network namespaces on one switch, which lies in a namespace of its own; links are cut and healed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator


def why_not() -> str:
    """Say why there can be no such hosts here; "" if there can."""
    if os.geteuid():
        return "network namespaces need root"
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: iproute2, util-linux)"
    name = f"gs{os.getpid()}try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"`ip netns add` fails here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


def _ip(*command: object) -> None:
    subprocess.run(["ip", *map(str, command)], check=True, timeout=30)


class Hosts:
    """Hosts 1, 2, ...; each has an address of its own and reaches the others over the switch."""

    def __init__(self, switch: str) -> None:
        self._switch = switch

    def address(self, host: int) -> str:
        """The IP address of a host."""
        return f"10.77.0.{host}"

    def by(self, host: int) -> list[str]:
        """What to put before a command that is to run on a host."""
        return ["nsenter", f"--net=/run/netns/{self._switch}h{host}"]

    def cut(self, host: int) -> None:
        """Unplug a host at the switch: what is sent is lost without a word."""
        _ip("-n", self._switch, "link", "set", f"p{host}", "down")

    def heal(self, host: int) -> None:
        """Plug it in again."""
        _ip("-n", self._switch, "link", "set", f"p{host}", "up")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Make hosts until the end of the block; what runs on them must have ended by then."""
    switch = f"gs{os.getpid()}"
    with contextlib.ExitStack() as stack:

        def add(name: str) -> None:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            _ip("-n", name, "link", "set", "lo", "up")

        add(switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        made = Hosts(switch)
        for i in range(1, count + 1):
            name = f"{switch}h{i}"
            add(name)
            _ip("-n", switch, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"p{i}", "master", "br0", "up")
            _ip("-n", name, "address", "add", f"{made.address(i)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield made
