"""Integer weights of the corpora in a mixture."""

import pytest

from megatape.data.training.mixing.mixture_weights import integer_weights, tempered_weights


def test_weights_are_integers_in_exact_proportion() -> None:
    assert integer_weights([0.7, 0.3]) == [7, 3]
    assert integer_weights([1e-3, 2, 0]) == [1, 2000, 0]


def test_weights_with_too_many_digits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.3333333.* repeat only after 10,000,000 samples.*fewer digits"):
        integer_weights([0.3333333, 0.6666667])


def test_tempered_weights_follow_the_sizes_of_corpora() -> None:
    assert tempered_weights([3 * 10**9, 10**9], 1.0) == [7500, 2500]
    assert tempered_weights([10**6, 10**4], 2.0) == [9091, 909]


def test_every_corpus_has_a_tempered_weight() -> None:
    assert tempered_weights([10**12, 1], 1.0) == [10_000, 1]
