"""How long a sequence can get in the memory of one engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """Blocks on the device and, where attention can read them, on the `host`.

    With a `window` (tokens that a query sees in every layer, 0: all) that the device can hold, a sequence
    *slides*: it gives up what falls out of the window and is never too long. Any other sequence that does not fit on
    the device is *oversized*: it keeps `share` blocks there, the latest ones, and the others on the host.
    """

    device: int
    block_size: int
    host: int = 0
    window: int = 0

    @property
    def slides(self) -> bool:
        return self.window > 0 and self.sliding_blocks(1) <= self.device

    def sliding_blocks(self, chunk: int) -> int:
        """Blocks that the windows of `chunk` consecutive queries touch at most."""
        return -(-(self.window + chunk - 2) // self.block_size) + 1

    def unseen(self, position: int) -> int:
        """Blocks from the beginning that no query at `position` or later sees."""
        return max(0, position - self.window + 1) // self.block_size if self.slides else 0

    @property
    def share(self) -> int:
        """Device blocks of an oversized sequence: half, so that others run beside it, but a block to fill and one to
        leave. 0 if none can be oversized."""
        return max(self.device // 2, min(2, self.device)) if self.host and not self.slides else 0

    @property
    def pace(self) -> int:
        """Device blocks that an oversized sequence takes at a time, while as many others leave."""
        return max(1, self.share // 2)

    def bound(self, chunk: int) -> int:
        """Device blocks with which a sequence of any length runs in chunks of `chunk` tokens."""
        if self.slides:
            return min(self.device, self.sliding_blocks(chunk))
        return self.share or self.device

    @property
    def device_tokens(self) -> int:
        return self.device * self.block_size

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequence that can run alone. None: there is no limit."""
        if self.slides:
            return None
        return max(self.device, self.share + self.host if self.share else 0) * self.block_size

    def holds(self, tokens: int) -> bool:
        longest = self.longest
        return longest is None or tokens <= longest

    def is_oversized(self, tokens: int) -> bool:
        return self.share > 0 and tokens > self.device_tokens

    def __str__(self) -> str:
        """The capacity in tokens, and the flag to raise when it is not enough."""
        if not self.host:
            return f"{self.device_tokens} tokens: raise --kv-memory or --num-blocks"
        host = self.host * self.block_size
        return f"{self.device_tokens} tokens on the device and {host} on the host: raise --swap-memory or --kv-memory"
