"""Texts by what they say, so that it is seen how one goes on that says the same."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass


class Node:
    """The end of an edge, whose label are `length` tokens of `text` from `start` on, and all below it. `count` suffixes
    pass or end here. The label is cut from the text that passed last: texts that leave the tree in the order in which
    they came are not kept by it."""

    __slots__ = ("children", "count", "length", "start", "text")

    def __init__(self, text: array[int], start: int, length: int, count: int) -> None:
        self.text = text
        self.start = start
        self.length = length
        self.count = count
        self.children: dict[int, Node] = {}


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a tree: behind the first `offset` tokens of a node's label, `depth` tokens from the root."""

    node: Node
    offset: int
    depth: int


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that may follow, and how many of them are expected to be right."""

    tokens: list[int]
    expected: float


class SuffixTree:
    """The first `depth` tokens of suffixes, path-compressed: equal beginnings are one path, with the count of suffixes
    on it. Suffixes come and go one by one; their texts must not change. With n of them there are at most 2 n + 1
    nodes."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._root = Node(array("I"), 0, 0, 0)

    def __len__(self) -> int:
        """How many suffixes it has."""
        return self._root.count

    def add(self, text: array[int], start: int) -> None:
        """Add what begins at `start`."""
        end = min(start + self.depth, len(text))
        node = self._root
        node.count += 1
        while start < end:
            child = node.children.get(text[start])
            if child is None:
                node.children[text[start]] = Node(text, start, end - start, 1)
                return
            length = _common(child, text, start, end)
            if length < child.length:
                child = _split(node, child, length)
            child.text, child.start = text, start
            child.count += 1
            node, start = child, start + length

    def remove(self, text: array[int], start: int) -> None:
        """Remove what was added so before."""
        end = min(start + self.depth, len(text))
        node = self._root
        node.count -= 1
        while start < end:
            child = node.children[text[start]]
            child.count -= 1
            if not child.count:
                del node.children[text[start]]
                break
            node, start = child, start + child.length
        if node is not self._root and len(node.children) == 1:
            _merge(node)

    def find(self, text: array[int], start: int) -> Place | None:
        """Where the tokens of `text` from `start` on lead to; None if no suffix begins with them."""
        node, offset, at, end = self._root, 0, start, len(text)
        while at < end:
            child = node.children.get(text[at])
            if child is None:
                return None
            offset = min(child.length, end - at)
            if child.text[child.start : child.start + offset] != text[at : at + offset]:
                return None
            node, at = child, at + offset
        return Place(node, offset, end - start)

    def match(self, text: array[int], least: int, most: int) -> Place | None:
        """The end of the longest of the last `least` to `most` tokens of a text that the tree has.

        Halves the range: whatever begins a suffix of a text, all of it but its first token begins the next one, as long
        as later suffixes of each text come first and leave last.
        """
        tail = text[max(0, len(text) - most) :]
        low, high = least, len(tail)
        best = self.find(tail, high - low) if low <= high else None
        if best is None:
            return None
        whole = self.find(tail, 0)  # a text that repeats another does so for long
        if whole is not None:
            return whole
        while low < high - 1:
            middle = (low + high) // 2
            found = self.find(tail, len(tail) - middle)
            if found is None:
                high = middle
            else:
                low, best = middle, found
        return best

    def follow(self, place: Place, most: int, least_probability: float) -> Continuation:
        """Up to `most` tokens behind a place, each the one most often seen there, while the estimated probability that
        all of them are right stays at `least_probability` or above. Of equally frequent ones the smallest id."""
        node, offset = place.node, place.offset
        tokens: list[int] = []
        probability, expected = 1.0, 0.0
        while len(tokens) < most:
            if offset == node.length:
                best = max(node.children.items(), key=lambda item: (item[1].count, -item[0]), default=None)
                if best is None:
                    break
                probability *= best[1].count / node.count
                if probability < least_probability:
                    break
                node, offset = best[1], 0
            start = node.start + offset
            label = node.text[start : start + min(node.length - offset, most - len(tokens))]
            tokens += label
            offset += len(label)
            expected += probability * len(label)
        return Continuation(tokens, expected)


def _common(child: Node, text: array[int], start: int, end: int) -> int:
    """How many tokens of a child's label the text has from `start` on. Slices are compared at once: many are equal."""
    length = min(child.length, end - start)
    label, wanted = child.text[child.start : child.start + length], text[start : start + length]
    if label == wanted:
        return length
    return bisect_left(range(1, length + 1), True, key=lambda count: label[:count] != wanted[:count])


def _split(parent: Node, child: Node, length: int) -> Node:
    """A new node in the middle of a child's edge, `length` tokens below the parent."""
    upper = Node(child.text, child.start, length, child.count)
    parent.children[child.text[child.start]] = upper
    child.start += length
    child.length -= length
    upper.children[child.text[child.start]] = child
    return upper


def _merge(node: Node) -> None:
    """Join a node with its only child, if no suffix ends between them."""
    (child,) = node.children.values()
    if child.count == node.count:
        node.text, node.start = child.text, child.start - node.length
        node.length += child.length
        node.children = child.children
