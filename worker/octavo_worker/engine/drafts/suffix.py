"""Drafts from the sequence's own text and from earlier outputs of its tenant."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence

from octavo_worker.engine.drafts.gram_index import GramIndex
from octavo_worker.engine.drafts.ngram import text_before
from octavo_worker.engine.drafts.suffix_tree import Continuation, SuffixTree

MATCH = 32
"""Tokens that are looked up at most: more than that says nothing more."""
DRAFT = 32
"""Tokens that a draft has at most."""
LEAST_PROBABILITY = 0.1
"""Drafts end where it is less likely than this that they are right to the end."""
PACE = 2
"""Suffixes of ended outputs that a store takes for each token of a running one: it keeps up, and never takes long."""


class OutputStore:
    """The latest outputs of one tenant, up to `capacity` tokens of them.

    An output that has ended waits until `advance` puts its suffixes into the tree, the last first; the oldest output
    loses its own, the first first. So whatever is found of a text, its tail is found, too.
    """

    def __init__(self, capacity: int) -> None:
        """Raises ValueError for no capacity."""
        if capacity < 1:
            raise ValueError("a store of no tokens learns nothing")
        self.tree = SuffixTree(MATCH + DRAFT)
        self._capacity = capacity
        self._waiting: deque[array[int]] = deque()
        self._num_waiting = 0
        self._added = 0  # suffixes that the tree has of the first one that waits
        self._known: deque[array[int]] = deque()
        self._removed = 0  # suffixes that the tree has lost of the first known one

    def learn(self, output: array[int]) -> None:
        """Take an output that has ended: of a long one the end, and nothing while too much is waiting."""
        output = output[-self._capacity :]
        if output and self._num_waiting + len(output) <= self._capacity:
            self._waiting.append(output)
            self._num_waiting += len(output)

    def advance(self, suffixes: int) -> None:
        """Put up to so many waiting suffixes into the tree."""
        for _ in range(min(suffixes, self._num_waiting)):
            if len(self.tree) == self._capacity:
                self._remove_oldest()
            output = self._waiting[0]
            self._added += 1
            self._num_waiting -= 1
            self.tree.add(output, len(output) - self._added)
            if self._added == len(output):
                self._known.append(self._waiting.popleft())
                self._added = 0

    def _remove_oldest(self) -> None:
        output = self._known[0]
        self.tree.remove(output, self._removed)
        self._removed += 1
        if self._removed == len(output):
            self._known.popleft()
            self._removed = 0


class SuffixProposer:
    """Suffix decoding. Good where answers resemble each other: agents, forms, retries, code that is written again.

    The longest match of a sequence's last tokens is looked up in its own text, where the latest occurrence counts, and
    in the latest outputs of its tenant, where the most frequent continuation does. A draft is no longer than its match.
    The one of which more tokens are expected to be right is proposed.

    Each salt has a store of its own, of `capacity` tokens at about 400 bytes; the `tenants` that came last keep theirs.
    The sequence itself costs what it costs with `NgramProposer`.
    """

    def __init__(
        self, *, least: int = 2, most: int = 4, window: int = 8192, capacity: int = 16384, tenants: int = 32
    ) -> None:
        self._least, self._most, self._window = least, most, window
        self._capacity = capacity
        self._tenants = tenants
        self._stores: OrderedDict[bytes, OutputStore] = OrderedDict()

    def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> SuffixDrafter:
        recent = text_before(prompt, output, self._window + self._most)
        index = GramIndex(recent, least=self._least, most=self._most, window=self._window)
        return SuffixDrafter(index, self._store(salt))

    def _store(self, salt: bytes) -> OutputStore:
        store = self._stores.pop(salt, None) or OutputStore(self._capacity)
        self._stores[salt] = store
        if len(self._stores) > self._tenants:
            self._stores.popitem(last=False)
        return store


class SuffixDrafter:
    """Its sequence's output joins the store when it ends: what was appended to it, not what it began with."""

    __slots__ = ("_begin", "_index", "_store")

    def __init__(self, index: GramIndex, store: OutputStore) -> None:
        self._index = index
        self._store = store
        self._begin = len(index.text)

    def append(self, tokens: Sequence[int]) -> None:
        self._index.append(tokens)
        self._store.advance(PACE * len(tokens))

    def propose(self, most: int) -> Sequence[int]:
        most = min(most, DRAFT)
        own, others = self._from_own(most), self._from_others(most)
        return own if len(own) >= others.expected else others.tokens

    def _from_own(self, most: int) -> Sequence[int]:
        match = self._index.find() if most > 0 else None
        if match is None:
            return ()
        match = self._index.widen(match, MATCH)
        return self._index.after(match, min(most, match.length))

    def _from_others(self, most: int) -> Continuation:
        tree = self._store.tree
        place = tree.match(self._index.text, self._index.least, MATCH) if most > 0 and len(tree) else None
        if place is None:
            return Continuation([], 0.0)
        return tree.follow(place, min(most, place.depth), LEAST_PROBABILITY)

    def fork(self) -> SuffixDrafter:
        return SuffixDrafter(self._index.fork(), self._store)

    def close(self) -> None:
        self._store.learn(self._index.text[self._begin :])
