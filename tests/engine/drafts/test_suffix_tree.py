"""The suffix tree against all substrings of what is in it."""

from __future__ import annotations

from array import array

from hypothesis import example, given
from hypothesis import strategies as st

from octavo_worker.engine.drafts.suffix_tree import Node, SuffixTree

DEPTH = 5

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=6)


class Model:
    """A tree, and the suffixes that are in it, as they are written out. Texts enter from the end, leave from the
    beginning, the oldest first."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.tree = SuffixTree(DEPTH)
        self.texts = [array("I", text) for text in texts]
        self.order = [(text, start) for text in self.texts for start in range(len(text))]
        self.coming = [(text, start) for text in self.texts for start in reversed(range(len(text)))]
        self.present: list[tuple[array[int], int]] = []

    def add(self) -> None:
        text, start = self.coming.pop(0)
        self.tree.add(text, start)
        self.present.append((text, start))

    def remove(self) -> None:
        """The first suffix of the oldest text, once it has come."""
        text, start = self.order[0]
        if any(other is text and place == start for other, place in self.present):
            self.order.pop(0)
            self.tree.remove(text, start)
            self.present = [(t, s) for t, s in self.present if not (t is text and s == start)]

    @property
    def written(self) -> list[list[int]]:
        return [text[start : start + DEPTH].tolist() for text, start in self.present]

    def count(self, begin: list[int]) -> int:
        return sum(suffix[: len(begin)] == begin for suffix in self.written)

    def follow(self, begin: list[int], most: int, least_probability: float) -> tuple[list[int], float]:
        tokens: list[int] = []
        probability, expected = 1.0, 0.0
        while len(tokens) < most:
            seen = {token: self.count([*begin, *tokens, token]) for token in range(3)}
            best = max(seen, key=lambda token: (seen[token], -token))
            probability *= seen[best] / self.count([*begin, *tokens])
            if not seen[best] or probability < least_probability:
                break
            tokens.append(best)
            expected += probability
        return tokens, expected


def nodes(tree: SuffixTree) -> list[Node]:
    found, waiting = [], [tree._root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += node.children.values()
    return found


def built(texts: list[list[int]], moves: list[bool]) -> Model:
    model = Model(texts)
    for adds in moves:
        if adds and model.coming:
            model.add()
        elif not adds and model.present:
            model.remove()
        check(model)
    return model


def check(model: Model) -> None:
    """Counts and sizes, and that no text is kept that has left."""
    found, living = nodes(model.tree), {id(text) for text, _ in model.present}
    assert len(model.tree) == len(model.present)
    assert len(found) <= 2 * len(model.present) + 1
    for node in found[1:]:
        assert id(node.text) in living
        assert node.count >= max(1, sum(child.count for child in node.children.values()))
        assert all(child.text[child.start] == token for token, child in node.children.items())


moves = st.lists(st.sampled_from([True, True, False]), max_size=60)
query = st.lists(st.integers(0, 2), min_size=1, max_size=7)


@given(texts=texts, moves=moves, query=query)
def test_what_is_found_was_said_and_counted(texts: list[list[int]], moves: list[bool], query: list[int]) -> None:
    model = built(texts, moves)
    place = model.tree.find(array("I", query), 0)
    assert (place is not None) == (model.count(query) > 0)
    if place is not None:
        assert place.node.count == model.count(query)


@given(texts=texts, moves=moves, query=query, least=st.integers(1, 3), more=st.integers(0, 4))
def test_the_longest_match_is_that_of_all_substrings(
    texts: list[list[int]], moves: list[bool], query: list[int], least: int, more: int
) -> None:
    model = built(texts, moves)
    most = min(DEPTH, least + more)
    place = model.tree.match(array("I", query), least, most)
    lengths = [n for n in range(least, min(most, len(query)) + 1) if model.count(query[-n:])]
    assert (place.depth if place else None) == max(lengths, default=None)


@given(
    texts=texts,
    moves=moves,
    query=query,
    most=st.integers(0, 6),
    least_probability=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]),
)
@example(texts=[[0, 1, 0], [0, 1, 2], [0, 2, 1]], moves=[True] * 9, query=[0], most=3, least_probability=0.1)
def test_a_continuation_is_the_one_most_often_said(
    texts: list[list[int]], moves: list[bool], query: list[int], most: int, least_probability: float
) -> None:
    model = built(texts, moves)
    place = model.tree.match(array("I", query), 1, 3)
    if place is None:
        return
    tokens, expected = model.follow(query[len(query) - place.depth :], most, least_probability)
    found = model.tree.follow(place, most, least_probability)
    assert found.tokens == tokens
    assert abs(found.expected - expected) < 1e-9


@given(texts=texts)
def test_an_emptied_tree_is_as_new(texts: list[list[int]]) -> None:
    model = built(texts, [True] * 60)
    while model.order:
        model.remove()
        check(model)
    assert len(nodes(model.tree)) == 1
    assert len(model.tree) == 0
