"""Which running sequences share leading blocks, so that attention reads those once for all of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

_MOST_FORKS = 64  # forks on the way to a group: sequences that part after more of them stay together


class _Node:
    """A prefix up to some chunk: the sequences that begin with its blocks, and where they go on."""

    __slots__ = ("children", "members", "tokens")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.members: set[Hashable] = set()
        self.children: dict[bytes, _Node] = {}  # by the blocks of their chunk, as words

    def end(self) -> _Node:
        """The last of a run of chunks that the same sequences share."""
        node = self
        while len(node.children) == 1:
            (only,) = node.children.values()
            if len(only.members) < len(node.members):
                break
            node = only
        return node


@dataclass(slots=True)
class _Division:
    """Sequences below a node that join the group around it, those that form groups, and the tokens saved by all."""

    saved: int
    joined: list[Hashable]
    groups: list[tuple[int, list[Hashable]]]  # shared tokens, sequences


class PrefixGroups:
    """Groups of sequences with equal leading blocks, each sequence in at most one, chosen to read the fewest tokens.

    The sequences' block tables form a tree of chunks. A group at a node of depth d tokens saves d tokens a step for
    each of its sequences but one; sequences below may join it or form groups of their own further down. The best
    division is found from the root down. Nothing is computed while no sequence comes or goes.

    `chunk_blocks`: blocks of one chunk, the unit in which attention shares. `block_size`: tokens of a block.
    `least_saving`: tokens a step that a group must save to be one.
    """

    def __init__(self, chunk_blocks: int, block_size: int, least_saving: int = 1) -> None:
        self._chunk_blocks = chunk_blocks
        self._chunk_tokens = chunk_blocks * block_size
        self._least_saving = max(least_saving, 1)
        self._root = _Node(0)
        self._paths: dict[Hashable, list[bytes]] = {}
        self._group_of: dict[Hashable, int] | None = {}
        self._prefixes: list[int] = []

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._paths

    def add(self, key: Hashable, block_table: Sequence[int], tokens: int) -> None:
        """A sequence starts to decode; its first `tokens` tokens are stored and their blocks stay while it is here.
        Raises ValueError for one that is here already."""
        if key in self._paths:
            raise ValueError(f"sequence {key!r} is here already")
        chunks = tokens // self._chunk_tokens
        words = array("i", block_table[: chunks * self._chunk_blocks])
        data, width = words.tobytes(), self._chunk_blocks * words.itemsize
        path = self._paths[key] = [data[at : at + width] for at in range(0, len(data), width)]
        node = self._root
        for chunk in path:
            child = node.children.get(chunk)
            if child is None:
                child = node.children[chunk] = _Node(node.tokens + self._chunk_tokens)
            child.members.add(key)
            node = child
        self._root.members.add(key)
        if path:
            self._group_of = None

    def discard(self, key: Hashable) -> None:
        """The sequence stops, or its blocks change. Unknown ones are ignored."""
        path = self._paths.pop(key, None)
        self._root.members.discard(key)
        if not path:
            return
        node = self._root
        for chunk in path:
            child = node.children[chunk]
            child.members.discard(key)
            if not child.members:
                del node.children[chunk]
                break
            node = child
        self._group_of = None

    def lists(self, keys: Iterable[Hashable]) -> tuple[list[int], list[int]]:
        """The group of each of `keys` (-1: none) and the shared tokens of each group."""
        if self._group_of is None:
            self._regroup()
        assert self._group_of is not None
        find = self._group_of.get
        return [find(key, -1) for key in keys], self._prefixes

    def _regroup(self) -> None:
        division = cache(self._divide)  # the same node is asked for below several groups
        groups = division(division, self._root, 0, 0).groups
        self._prefixes = [tokens for tokens, _ in groups]
        self._group_of = {key: number for number, (_, keys) in enumerate(groups) for key in keys}

    def _divide(self, divide: Callable[..., _Division], node: _Node, around: int, level: int) -> _Division:
        """The best division of a node's sequences inside a group that shares `around` tokens."""
        node = node.end()
        best = self._spread(divide, node, around, level)
        if node.tokens > around:
            own = self._spread(divide, node, node.tokens, level)
            saved = own.saved - node.tokens
            if saved >= best.saved and (len(own.joined) - 1) * node.tokens >= self._least_saving:
                return _Division(saved, [], [(node.tokens, own.joined), *own.groups])
        return best

    def _spread(self, divide: Callable[..., _Division], node: _Node, around: int, level: int) -> _Division:
        """A node's sequences join the group around it, but for what its children divide better."""
        forks = [child for child in node.children.values() if len(child.members) > 1] if level < _MOST_FORKS else []
        joined = list(node.members.difference(*(child.members for child in forks)))
        result = _Division(len(joined) * around, joined, [])
        for child in forks:
            below = divide(divide, child, around, level + 1)
            result.saved += below.saved
            result.joined += below.joined
            result.groups += below.groups
        return result
