"""The KV pool of a mock engine: blocks are taken in the order of arrival."""

import asyncio
from collections import deque


class BlockPool:
    """Blocks that running requests and kept sequences share.

    Args:
        capacity: blocks in all, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting_count(self) -> int:
        """Requests that wait for blocks."""
        return len(self._waiting)

    async def take(self, blocks: int) -> None:
        """Wait for so many free blocks, behind all who came before; 1 <= blocks <= capacity."""
        if not self._waiting and blocks <= self.free:
            self.free -= blocks
            return
        turn = (blocks, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        try:
            await turn[1]
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
                self.give(0)  # those behind may fit now
            else:
                self.give(blocks)
            raise

    def give(self, blocks: int) -> None:
        """Put blocks back, and let the first who wait have theirs."""
        self.free += blocks
        while self._waiting and self._waiting[0][0] <= self.free:
            wanted, future = self._waiting.popleft()
            self.free -= wanted
            if future.cancelled():
                self.free += wanted
            else:
                future.set_result(None)
