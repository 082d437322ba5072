"""Held-out images: each client's own draw, stratified by class, and all that is left trains."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.data.held_out import hold_out
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import Data, Images, Split

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=5)
SHARES = st.floats(0.02, 0.5)
SEEDS = st.integers(0, 9)


def images_of(n, classes, seed=0):
    """Return n images that show their own number, of random classes."""
    y = torch.from_numpy(np.random.default_rng(seed).integers(0, classes, n))
    return Images(torch.arange(n, dtype=torch.int32)[:, None, None, None], y)


def data_of(n, classes=4, test=7):
    every = images_of(n + test, classes)
    train, test = (every.take(torch.arange(*ends)) for ends in ((0, n), (n, n + test)))
    return Data(train, test, tuple("abcdefgh")[:classes], (0.5,), (0.5,), "digest")


def split_of(sizes, spare=0, seed=0):
    """Return a split that gives each client so many images; `spare` belong to nobody."""
    order = np.random.default_rng(seed).permutation(sum(sizes) + spare)
    return Split(tuple(np.sort(part) for part in np.split(order, np.cumsum(sizes)))[: len(sizes)])


def numbers_of(images, indices):
    return images.x[torch.from_numpy(np.asarray(indices))].flatten().tolist()


def wanted(share, n):
    """Return the number of images that n give, and that a client is left with one."""
    return 0 if n < 2 else int(round(share * n, 9) + 0.5)


def tried(data, split, share, seed):
    """Return what is held out, or None where no image would be, or nothing would be left."""
    counts = [wanted(share, len(part)) for part in split.train]
    if not sum(counts) or any(give == len(part) for give, part in zip(counts, split.train, strict=True)):
        return None
    return hold_out(data, split, share, seed)


@settings(max_examples=80, deadline=None)
@given(SIZES, st.integers(0, 9), SHARES, SEEDS)
def test_every_image_of_a_client_is_either_held_out_or_kept(sizes, spare, share, seed):
    data, split = data_of(sum(sizes) + spare), split_of(sizes, spare)
    if (found := tried(data, split, share, seed)) is None:
        return
    used, parts = found
    for mine, kept, held in zip(split.train, parts.train, parts.test, strict=True):
        trained, tested = numbers_of(used.train, kept), numbers_of(used.test, held)
        assert sorted(trained + tested) == numbers_of(data.train, mine)
    assert len(used.test) == sum(map(len, parts.test))


@settings(max_examples=80, deadline=None)
@given(SIZES, SHARES, SEEDS)
def test_a_client_gives_the_nearest_number_and_of_each_class_one_within_an_image_of_its_share(sizes, share, seed):
    data, split = data_of(sum(sizes)), split_of(sizes)
    if (found := tried(data, split, share, seed)) is None:
        return
    used, parts = found
    for mine, held in zip(split.train, parts.test, strict=True):
        assert len(held) == wanted(share, len(mine))
        due = share * np.bincount(data.train.y.numpy()[mine], minlength=4)
        given = np.bincount(used.test.y.numpy()[held], minlength=4)
        if len(mine) > 1:
            assert np.abs(given - due).max() < 1


@settings(max_examples=40, deadline=None)
@given(SIZES.filter(lambda sizes: len(sizes) > 1), SHARES, SEEDS)
def test_other_clients_images_do_not_move_a_clients_draw(sizes, share, seed):
    data, split = data_of(sum(sizes)), split_of(sizes)
    fewer = replace(split, train=(split.train[0], *(part[: len(part) // 2 + 1] for part in split.train[1:])))
    before, after = (tried(data, one, share, seed) for one in (split, fewer))
    if before and after:
        assert numbers_of(before[0].test, before[1].test[0]) == numbers_of(after[0].test, after[1].test[0])


def test_seeds_and_clients_draw_for_themselves():
    data = data_of(80, classes=1)
    same = Split((np.arange(40), np.arange(40, 80)))
    found = [numbers_of(hold_out(data, same, 0.15, seed)[0].test, np.arange(12)) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert [number - 40 for number in found[0][6:]] != found[0][:6]


def test_the_draw_of_a_seed_stays_what_it_is():
    """Every trial's key stands for these images."""
    used, _ = hold_out(data_of(40), split_of([25, 15]), 0.2, 3)
    assert used.test.x.flatten().tolist() == PINNED


PINNED = [2, 8, 12, 19, 20, 21, 32, 35]


def test_a_pooled_split_holds_out_of_what_it_gives_for_training_alone():
    data = data_of(20, test=20)
    trains, tests = np.split(np.arange(40).reshape(2, 20)[:, ::2].reshape(-1), 2), np.array([1, 3, 35])
    used, parts = hold_out(data, Split(tuple(trains), (tests, tests), pooled=True), 0.2, 0)
    seen = used.test.x.flatten().tolist() + [n for part in parts.train for n in numbers_of(used.train, part)]
    assert sorted(seen) == sorted(np.concatenate(trains).tolist())
    assert any(number >= 20 for number in used.test.x.flatten().tolist())  # from the file of test images


def test_training_images_are_not_copied():
    data = data_of(40)
    assert hold_out(data, split_of([25, 15]), 0.2, 3)[0].train.x is data.train.x


class Untouchable(torch.Tensor):
    """Test images that nobody may look at."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"a test image went into {function.__name__}")


def test_no_test_image_is_looked_at():
    data = data_of(40)
    hidden = Images(*(leaf.as_subclass(Untouchable) for leaf in (data.test.x, data.test.y)))
    with pytest.raises(AssertionError, match="a test image went into"):
        Split(split_of([25, 15]).train, (np.arange(3), np.arange(3, 6))).apply(replace(data, test=hidden))
    own = replace(split_of([25, 15]), test=(np.arange(3), np.arange(3, 6)))
    used, _ = hold_out(replace(data, test=hidden), own, 0.2, 0)
    assert len(used.test) == 8


@pytest.mark.parametrize(("share", "sizes", "client"), [(0.9, [40, 4], 1), (0.75, [2, 40], 0)])
def test_a_share_that_leaves_a_client_nothing_names_both(share, sizes, client):
    said = rf"^protocol.validation={share} leaves client {client} none of its {sizes[client]} images; lower it$"
    with pytest.raises(UserError, match=said):
        hold_out(data_of(sum(sizes)), split_of(sizes), share, 0)


def test_a_share_that_holds_out_nothing_is_refused():
    said = r"^protocol.validation=0.01 holds out no image: no client has more than 40 for training; raise it$"
    with pytest.raises(UserError, match=said):
        hold_out(data_of(60), split_of([20, 40]), 0.01, 0)


def test_clients_with_too_few_images_keep_them():
    _, parts = hold_out(data_of(44), split_of([1, 3, 40]), 0.15, 0)
    assert [len(part) for part in parts.train] == [1, 3, 34]
    assert [len(part) for part in parts.test] == [0, 0, 6]
