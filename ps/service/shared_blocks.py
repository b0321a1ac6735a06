"""The memory that a PS task shares with one client: where requests lie in it, and where replies are put.

The task makes blocks, the client decides which is used for what: it knows what its program still looks at.
A request says in which block its tensors lie, and in which others those of the reply may be put.

Layer: ps. Single thread: the connection's. What a staged push keeps of a block lasts as long as that push does,
whatever the client gives up meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.ps.budget import Account, Budget, Kind
from globalstep.runtime.memory import address_of
from globalstep.wire.declarations import ALIGNMENT, padded
from globalstep.wire.shared_memory import MOST_BLOCKS, SHARED_FROM_BYTES, SLACK_BYTES, block_bytes, create
from globalstep.wire.socket_messages import Place, SocketMessage

Array = npt.NDArray[np.uint8]
_NBYTES = attrgetter("nbytes")


@dataclass(slots=True)
class Placed:
    """Where a reply's tensors have been put.

    Attributes:
        place: What to tell the client.
        descriptor: Of a new block: to be sent along, and closed then.
    """

    place: Place
    descriptor: int | None = None


class SharedBlocks:
    """The blocks of one connection.

    Args:
        limit_bytes: Largest tensor bytes of one message.
        account: For whom blocks are claimed; by default nobody counts them.
    """

    def __init__(self, limit_bytes: int, account: Account | None = None) -> None:
        self._limit_bytes = block_bytes(limit_bytes)
        self._account = account or Account(Budget())
        self._numbers = itertools.count(1)
        self._blocks: dict[int, Array] = {}
        #: Where each begins in this process.
        self._addresses: dict[int, int] = {}
        #: Those that the present request lets the reply use.
        self._offered: list[int] = []
        #: The one that it has been given, 0 for none yet: a second taker must not write over it.
        self._taken = 0
        #: How much the last reply had that was to be put into one; 0 for none yet.
        self._wanted = 0
        #: One that was made for the present reply, which has not been sent yet.
        self._unannounced: tuple[int, Placed] | None = None

    def __len__(self) -> int:
        return len(self._blocks)

    def data_of(self, message: SocketMessage) -> memoryview:
        """Give the bytes of a request's tensors, and take note of what else its place says.

        Args:
            message: The request.

        Returns:
            The bytes, which may be written to.

        Raises:
            InvalidArgumentError: If the place is none in this connection's memory.
        """
        place = message.place
        self._offered, self._taken = [], 0
        if self._unannounced is not None:
            self.forget_unannounced()
        if place is None:
            return message.data
        blocks = self._blocks
        for number in place.offered:
            if number not in blocks:
                raise _no_block(number)
        data = message.data
        if place.block:
            block = blocks.get(place.block)
            if block is None:
                raise _no_block(place.block)
            end = place.offset + message.nbytes
            # Both are unsigned and Python's numbers do not wrap around.
            if place.offset % ALIGNMENT or end > block.nbytes:
                raise InvalidArgumentError(
                    f"{message.nbytes} bytes from byte {place.offset} are not within block {place.block}, which has "
                    f"{block.nbytes}."
                )
            data = block.data[place.offset : end]
        self._offered = list(place.offered)
        if place.dropped:
            for number in place.dropped:
                self._forget(number)
            self._offered = [number for number in place.offered if number in blocks]
        return data

    def withdraw_offers(self) -> None:
        """Use none of the blocks that came with the last request: the next reply is another one's."""
        self._offered = []

    def create(self, nbytes: int) -> tuple[int, Placed]:
        """Make a block.

        Args:
            nbytes: Its size.

        Returns:
            Its number, and what to tell the client. The descriptor is the caller's.

        Raises:
            ResourceExhaustedError: If the connection has too many, the block is too large, or there is no memory.
            OSError: If the machine gives no memory.
        """
        if len(self._blocks) >= MOST_BLOCKS or not 0 < nbytes <= self._limit_bytes or nbytes % SLACK_BYTES:
            raise ResourceExhaustedError(
                f"A block of {nbytes} bytes beside {len(self._blocks)} others; the most are {MOST_BLOCKS} blocks of "
                f"{self._limit_bytes} bytes."
            )
        claim = self._account.budget.claim(Kind.SHARED, self._account, nbytes)
        descriptor, claim.memory = create(nbytes)
        # A view may outlive this connection: it holds the claim, and that the mapping.
        block: Array = np.asarray(claim)
        number = next(self._numbers)
        self._blocks[number] = block
        self._addresses[number] = address_of(block)
        return number, Placed(Place(number, SLACK_BYTES, new_bytes=nbytes), descriptor)

    def prepare(self, nbytes: Callable[[], int]) -> None:
        """See budget.ReplyBuffer: make a block where none that is offered fits."""
        # What is read is most often as large as before; then nobody needs to count.
        if self._unannounced is not None or (self._wanted and self._fitting(self._wanted) is not None):
            return
        wanted = nbytes()
        if wanted >= SHARED_FROM_BYTES and self._fitting(wanted) is None:
            with contextlib.suppress(OSError, ResourceExhaustedError):  # the values are sent
                self._unannounced = self.create(block_bytes(wanted))

    def take(self, nbytes: int) -> Array | None:
        """Give space in a block for the tensors of the reply, so that they are written there at once.

        It makes no block: the caller holds the shard's lock.

        Args:
            nbytes: How much.

        Returns:
            uint8 [nbytes]; None where there is none, or so few bytes are better sent.
        """
        if nbytes < SHARED_FROM_BYTES or self._taken:
            return None
        self._wanted = nbytes
        number = self._fitting(nbytes)
        if number is None and self._unannounced is not None:
            prepared = self._unannounced[0]
            number = prepared if self._blocks[prepared].nbytes == block_bytes(nbytes) else None
        if number is None:
            return None
        self._taken = number
        return self._blocks[number][SLACK_BYTES : SLACK_BYTES + nbytes]

    def put(self, pieces: Sequence[memoryview]) -> Placed | None:
        """Put a reply's tensors into a block, where they do not lie in one already.

        Args:
            pieces: The tensors, in order.

        Returns:
            Where they are; None where they are to be sent.
        """
        if sum(map(_NBYTES, pieces)) < SHARED_FROM_BYTES:
            return None
        sizes = [padded(piece.nbytes) for piece in pieces]
        total = sum(sizes)
        arrays = [np.frombuffer(piece, np.uint8) for piece in pieces]
        addresses = list(map(address_of, arrays))
        if self._taken and self._lie_there(addresses, sizes):
            return self._announce(self._taken, SLACK_BYTES)
        found = self._around(addresses, sizes, total) or self._elsewhere(total)
        if found is None:
            return None
        placed, at = found
        block, base = self._blocks[placed.place.block], self._addresses[placed.place.block]
        moves: list[tuple[int, Array]] = []
        for array, address, size in zip(arrays, addresses, sizes, strict=True):
            if address != base + at:
                # What another move might write over is taken out of the way first; only odd pushes have such.
                inside = base <= address < base + block.nbytes
                moves.append((at, array.copy() if inside else array))
            at += size
        for to, array in moves:
            block[to : to + array.nbytes] = array
        return placed

    def _lie_there(self, addresses: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether tensors lie one behind the other in the space that was given for them."""
        at = self._addresses[self._taken] + SLACK_BYTES
        for address, size in zip(addresses, sizes, strict=True):
            if address != at:
                return False
            at += size
        return True

    def _around(self, addresses: Sequence[int], sizes: Sequence[int], total: int) -> tuple[Placed, int] | None:
        """Find the place at which the largest tensor that lies in a block need not be moved."""
        largest = sizes.index(max(sizes))
        address = addresses[largest]
        for number, base in self._addresses.items():
            offset = address - base
            if 0 <= offset < self._blocks[number].nbytes:
                begin = offset - sum(sizes[:largest])
                if begin < 0 or begin % ALIGNMENT or begin + total > self._blocks[number].nbytes:
                    return None
                return self._announce(number, begin), begin
        return None

    def _announce(self, number: int, offset: int) -> Placed:
        """Give a place in a block, with the block itself where the client does not have it yet."""
        if self._unannounced is None or self._unannounced[0] != number:
            return Placed(Place(number, offset))
        (_, made), self._unannounced = self._unannounced, None
        return Placed(Place(number, offset, new_bytes=made.place.new_bytes), made.descriptor)

    def forget_unannounced(self) -> None:
        """Give up a block that was made for a reply which has not been sent."""
        if self._unannounced is not None:
            (number, made), self._unannounced = self._unannounced, None
            self._forget(number)
            if made.descriptor is not None:
                os.close(made.descriptor)

    def _forget(self, number: int) -> None:
        """Give up a block, if there is one of that number."""
        self._blocks.pop(number, None)
        self._addresses.pop(number, None)
        if number == self._taken:
            self._taken = 0

    def _elsewhere(self, total: int) -> tuple[Placed, int] | None:
        """Find a block that is offered, or make one."""
        number = self._fitting(total)
        if number is not None:
            return Placed(Place(number, SLACK_BYTES)), SLACK_BYTES
        self.forget_unannounced()
        try:
            _, placed = self.create(block_bytes(total))
        except (OSError, ResourceExhaustedError):
            return None
        return placed, SLACK_BYTES

    def _fitting(self, nbytes: int) -> int | None:
        """Give the first of the blocks offered that is large enough, unless it is much too large."""
        need = block_bytes(nbytes)
        for number in self._offered:
            if need <= self._blocks[number].nbytes <= 2 * need:
                return number
        return None


def _no_block(number: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"Block {number} is none of this connection's.")
