"""Which hypotheses a beam search keeps, on scores small enough to check by hand."""

from __future__ import annotations

from octavo_worker.contract.messages import BeamOptions
from octavo_worker.engine.beams.search import BeamSearch
from octavo_worker.engine.stop import StopRules

EOS = 9


def search(width: int, *, limit: int = 10, min_tokens: int = 0, **options: object) -> BeamSearch:
    return BeamSearch(BeamOptions(width, **options), StopRules(frozenset({EOS}), min_tokens, limit))


def test_children_of_one_parent_may_take_all_places():
    beams = search(2)
    assert beams.advance([[]], [[(1, -0.1), (2, -2.0), (3, -3.0)]]) == [(0, 1), (0, 2)]
    assert beams.advance([[1], [2]], [[(4, -0.1), (5, -0.2), (6, -9.0)], [(7, -0.1), (8, -1.0), (6, -2.0)]]) == [
        (0, 4),
        (0, 5),
    ]


def test_an_end_below_the_width_is_dropped_and_its_place_goes_to_the_next():
    beams = search(2)
    assert beams.advance([[]], [[(1, -0.1), (2, -0.2), (EOS, -0.3)]]) == [(0, 1), (0, 2)]
    assert beams.results(2) == []
    assert beams.advance([[1], [2]], [[(EOS, -0.1), (3, -1.0), (4, -2.0)], [(5, -3.0), (6, -4.0), (7, -5.0)]]) == [
        (0, 3),
        (0, 4),
    ]
    assert [found.tokens for found in beams.results(2)] == [[1, EOS]]


def test_early_stopping_ends_with_enough_finished_ones():
    said = [[(EOS, -0.1), (1, -0.2), (2, -0.3)]]
    beams = search(1, early_stopping=True)
    assert beams.advance([[]], said) == []
    assert [(found.tokens, found.reason) for found in beams.results(1)] == [([EOS], "stop")]


def test_never_goes_on_while_a_long_one_may_still_win():
    said = [[(EOS, -0.3), (1, -0.31)]]
    assert search(1, early_stopping=False).advance([[]], said) == []
    assert search(1, early_stopping="never", length_penalty=1.0).advance([[]], said) == [(0, 1)]
    assert search(1, early_stopping="never", length_penalty=-1.0).advance([[]], said) == []


def test_the_limit_finishes_everything():
    beams = search(2, limit=1)
    assert beams.advance([[]], [[(1, -0.1), (2, -0.2), (3, -0.3)]]) == []
    assert [(found.tokens, found.reason) for found in beams.results(2)] == [([1], "length"), ([2], "length")]


def test_the_length_penalty_chooses_between_short_and_long():
    def winner(penalty: float) -> list[int]:
        beams = search(2, limit=3, length_penalty=penalty, early_stopping="never")
        live, said = [[]], [[(EOS, -1.0), (1, -1.1), (2, -9.0)]]
        while live:
            live = [[*live[parent], token] for parent, token in beams.advance(live, said)]
            said = [[(1, -0.2), (2, -8.0), (3, -9.0)]] * len(live)
        return beams.results(1)[0].tokens

    assert winner(0.0) == [EOS]
    assert winner(2.0) == [1, 1, 1]


def test_equal_scores_go_by_parent_then_token():
    assert search(2).advance([[]], [[(7, -1.0), (3, -1.0), (5, -1.0)]]) == [(0, 3), (0, 5)]


def test_the_best_so_far_may_be_live_or_finished():
    beams = search(2)
    assert beams.advance([[]], [[(1, -1.0), (EOS, -1.5), (2, -2.0)]]) == [(0, 1), (0, 2)]
    assert beams.best([1]) == (-1.0, [1])
    assert beams.num_finished == 1
    assert beams.advance([[1], [2]], [[(3, -4.0), (4, -5.0), (5, -6.0)], [(6, -4.0), (7, -5.0), (8, -6.0)]])
    assert beams.best([1, 3]) == (-1.5, [EOS])


def test_a_search_keeps_as_many_finished_as_it_is_wide_and_may_end_with_them():
    for early, goes_on in ((True, []), (False, [(0, 3), (1, 4)])):
        beams = search(2, early_stopping=early)
        assert beams.advance([[]], [[(1, -0.1), (EOS, -0.5), (2, -0.6)]]) == [(0, 1), (0, 2)]
        a, b = [(3, -0.1), (EOS, -0.5), (5, -9.0)], [(4, -0.1), (6, -9.0), (7, -9.0)]
        assert beams.advance([[1], [2]], [a, b]) == goes_on
        assert [found.tokens for found in beams.results(9)] == [[1, EOS], [EOS]]
    beams.advance([[1, 3], [2, 4]], [[(8, -0.1), (EOS, -0.2), (5, -9.0)], [(6, -9.0), (7, -9.0), (5, -9.0)]])
    assert [found.tokens for found in beams.results(9)] == [[1, 3, EOS], [1, EOS]]


def test_a_search_asks_for_its_width_besides_all_tokens_that_end_it():
    assert search(2).num_candidates == 3
    assert BeamSearch(BeamOptions(3), StopRules(frozenset({1, 2}), 0, 9)).num_candidates == 5
