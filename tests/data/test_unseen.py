"""Clients that never train: nothing of theirs is learnt from, and they are told apart by their number's draw alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.benchmark.data.unseen import split_off_unseen
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import Split


def split_of(clients):
    """Return a split whose client k has the training images 3k to 3k + 2 and the test images 2k and 2k + 1."""
    parts = [(np.arange(3 * k, 3 * k + 3), np.arange(2 * k, 2 * k + 2)) for k in range(clients)]
    train, test = zip(*parts, strict=True)
    return Split(train, test, pooled=False)


@given(st.integers(2, 30), st.data(), st.integers(0, 99))
def test_every_client_is_on_one_side_with_all_that_it_holds(clients, data, seed):
    count = data.draw(st.integers(1, clients - 1))
    seen, others = split_off_unseen(split_of(clients), count, seed)
    assert (len(seen.train), len(others.train)) == (count, clients - count)
    for side in (seen, others):
        numbers = [int(part[0]) // 3 for part in side.train]
        assert numbers == sorted(numbers) == [int(part[0]) // 2 for part in side.test]
    held = np.concatenate([*seen.train, *others.train])
    assert sorted(held) == list(range(3 * clients))


def test_who_trains_is_drawn_by_the_seed():
    drawn = [tuple(int(part[0]) for part in split_off_unseen(split_of(10), 7, seed)[0].train) for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_without_unseen_clients_nothing_changes():
    split = split_of(4)
    assert split_off_unseen(split, 4, 0) == (split, None)


def test_unseen_clients_need_test_images_of_their_own():
    with pytest.raises(UserError, match=r"^unseen clients are scored on test images of their own.*partition=personal"):
        split_off_unseen(Split((np.arange(2), np.arange(2, 4))), 1, 0)
