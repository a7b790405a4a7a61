"""Which tree goes into which pack."""

import pytest

from patr.batching.buckets import Buckets, Size, first_fit

BUCKETS = Buckets(row_length=4, sizes=(Size(4, 12, 10), Size(8, 24, 20), Size(8, 64, 20)))


def test_the_first_size_that_fits_is_taken():
    assert BUCKETS.smallest(Size(4, 12, 10)) == Size(4, 12, 10)
    assert BUCKETS.smallest(Size(4, 8, 11)) == Size(8, 24, 20)
    assert BUCKETS.smallest(Size(1, 25, 1)) == Size(8, 64, 20)
    assert BUCKETS.smallest(Size(9, 1, 1)) is None


def test_first_fit_by_decreasing_size():
    needs = [Size(2, 4, 2), Size(5, 8, 2), Size(4, 8, 2), Size(3, 8, 2), Size(2, 4, 2)]
    # 5 opens a pack of 8, 4 a pack of 4; 3 joins 5, the first 2 opens another pack of 4, the second joins it.
    assert first_fit(needs, "abcde", BUCKETS) == [[1, 3], [2], [0, 4]]
    assert first_fit([Size(1, 8, 15), Size(1, 8, 15)], "ab", BUCKETS) == [[0], [1]]
    assert first_fit([], [], BUCKETS) == []


def test_a_pack_never_grows_into_a_dearer_size():
    # Two things of 3 rows would fit into 8, but 4 are enough for either: two cheap packs, not a dear one.
    assert first_fit([Size(3, 8, 2), Size(3, 8, 2), Size(1, 4, 2)], "abc", BUCKETS) == [[0, 2], [1]]


def test_what_fits_nowhere_is_named_with_its_sizes():
    with pytest.raises(ValueError, match=r"task big needs Size\(rows=9, tiles=3, trained=2\).*add a larger one"):
        first_fit([Size(1, 1, 1), Size(9, 3, 2)], ["task small", "task big"], BUCKETS)


@pytest.mark.parametrize("row_length, sizes", [(0, (Size(1, 1, 1),)), (4, ()), (4, (Size(1, 0, 1),))])
def test_impossible_buckets_are_refused(row_length, sizes):
    with pytest.raises(ValueError, match="at least one size and only numbers >= 1"):
        Buckets(row_length, sizes)
