"""Client of `globalstep status`: asks the PS tasks for their Status, without becoming a member of the run.

Layer: deploy. Threads: a ClusterWatch belongs to one thread at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from globalstep.chief.journal.run_directory import FILE_NAME, kept_addresses, kept_identity
from globalstep.chief.journal.run_lock import living_holder
from globalstep.cluster.cluster import ClusterSpec, is_address
from globalstep.deploy.launch.live_runs import find_credentials
from globalstep.deploy.status.view import Answer
from globalstep.errors import InvalidArgumentError, NotFoundError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.security.credentials import Credentials
from globalstep.wire.protocol_version import own_protocol
from globalstep.wire.transports import ask_all
from globalstep.worker.transport.grpc_transport import GrpcTransport

#: How long a task may take to answer.
ANSWER_SECS = 3.0


def addresses_of(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Say which PS tasks are meant.

    Args:
        arguments: Addresses as they were given, each "host:port", or several with commas.
        environ: For TF_CONFIG, where none were given.

    Raises:
        InvalidArgumentError: If there are none, or one is no address.
        ValueError, TypeError: If TF_CONFIG has no cluster that makes sense.

    >>> addresses_of(["grpc://a:1,b:2", "c:3"], {})
    ['a:1', 'b:2', 'c:3']
    """
    addresses = [one for text in arguments for one in text.removeprefix("grpc://").split(",") if one]
    if not addresses and environ.get("TF_CONFIG"):
        # Of a tool's TF_CONFIG only the cluster matters: it is no task of it.
        cluster = ClusterSpec(json.loads(environ["TF_CONFIG"]).get("cluster", {}))
        addresses = [task for task in (cluster.job_tasks("ps") if "ps" in cluster.jobs else []) if task]
    if not addresses:
        raise InvalidArgumentError(
            "Name the addresses of the PS tasks, host:port, in order, or the run's directory, or set TF_CONFIG."
        )
    for address in addresses:
        if not is_address(address):
            raise InvalidArgumentError(
                f'The address of a PS task is "host:port" with a port up to 65535, not {address!r}, and there is no '
                "directory of that name."
            )
    return addresses


def watch_of(arguments: Sequence[str], environ: Mapping[str, str]) -> ClusterWatch:
    """Make the connections to the PS tasks that are meant.

    Raises:
        InvalidArgumentError, ValueError, TypeError: As of `addresses_of`.
        NotFoundError: If the directory says nothing of PS tasks.
        DataLossError: If what it says cannot be understood.
    """
    if len(arguments) != 1 or is_address(arguments[0]) or not _is_directory(arguments[0]):
        return ClusterWatch(addresses_of(arguments, environ), environ)
    directory = arguments[0]
    run, addresses = kept_identity(directory), kept_addresses(directory)
    if addresses:
        return ClusterWatch(addresses, environ, run.id)
    holder = living_holder(directory)
    if holder:
        raise NotFoundError(
            f"The run in {directory} has its parameter server in the process that trains, {holder}: there is no "
            "address to ask. Its own lines say how it fares."
        )
    if run.id:
        raise NotFoundError(
            f"{directory} names no PS tasks: its run had its parameter server in the process that trained, which has "
            f"ended, or its chief is only about to begin: then ask again. `globalstep checkpoint ls {directory}` says "
            "what it has saved."
        )
    raise NotFoundError(
        f"No run has begun in {directory}: it has no {FILE_NAME}. The program's checkpoint_dir has one."
    )


def _is_directory(argument: str) -> bool:
    return os.path.isdir(argument) or ("://" in argument and not argument.startswith("grpc://"))


def _for_address(shown: Credentials, address: str) -> Credentials:
    """Give what to show to a PS task: what its run has, where this user has started it here, and named nothing else."""
    if shown.token or shown.token_file or shown.tls is not None:
        return shown
    return find_credentials(address) or shown


class ClusterWatch:
    """Connections to the PS tasks of a cluster; use it in a `with` block.

    They show what the environment says of certificates and tokens, as a session's do.

    Args:
        addresses: Of the PS tasks, in order.
        environ: Names certificates and token; by default this process's.
        run_id: Of the run that is meant: what serves another one there now, counts as no answer. "" for any.
    """

    def __init__(self, addresses: Sequence[str], environ: Mapping[str, str] | None = None, run_id: str = "") -> None:
        self.addresses = list(addresses)
        self._run_id = run_id
        shown = Credentials.from_environ(os.environ if environ is None else environ)
        self._transports = [
            GrpcTransport(address, index, "grpc", credentials=_for_address(shown, address))
            for index, address in enumerate(self.addresses)
        ]

    def __enter__(self) -> ClusterWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, brief: bool = True, timeout_secs: float = ANSWER_SECS) -> list[Answer]:
        """Ask all at once.

        Returns:
            In order: what each has answered, or why it has not.
        """
        request = pb.StatusRequest(brief=brief, protocol=own_protocol())
        return [self._of_run(answer) for _, answer in ask_all(self._transports, "Status", request, timeout_secs)]

    def _of_run(self, answer: Answer) -> Answer:
        if not self._run_id or not isinstance(answer, pb.StatusReply) or answer.run.id in ("", self._run_id):
            return answer
        return UnavailableError(f"The run has ended; another one serves there now, {answer.run.name or answer.run.id}.")

    def close(self) -> None:
        """Give up the connections."""
        for transport in self._transports:
            transport.close()
