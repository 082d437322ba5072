"""A dataset that returns what training would misread is refused in one line that names it."""

import dataclasses

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import HookError
from fedspan.benchmark.task import Data, Dataset, Images
from tests.toys import toy

X = torch.zeros(6, 8, 9, 3, dtype=torch.uint8)
Y = torch.arange(6) % 2
FINE = Data(Images(X, Y), Images(X[:4], Y[:4]), ("a", "b"), (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), "d" * 64)


def dataset_of(data):
    @toy("dataset", "given")
    class Given(Dataset):
        def load(self, cache):
            return data

    return Given()


def images(**fields):
    """Return the data with other training images."""
    return dataclasses.replace(FINE, train=dataclasses.replace(FINE.train, **fields))


def facts(**fields):
    return dataclasses.replace(FINE, **fields)


WRONG = {
    "nothing": (None, "a Data: it returned None; is a return missing?"),
    "images and labels alone": ((X, Y), "a Data: it returned a tuple of 2"),
    "a split without a name": (facts(test=(X, Y)), "Images as `test`: it is a tuple of 2"),
    "floats": (
        images(x=X / 255),
        "channels]: train.x is a tensor float32 [6, 8, 9, 3]; training divides by 255; for pi",
    ),
    "large numbers": (images(x=X.long()), "channels]: train.x is a tensor int64 [6, 8, 9, 3]"),
    "arrays": (images(x=X.numpy()), "train.x is an array uint8 [6, 8, 9, 3]; wrap it in torch.from_numpy"),
    "no channels": (images(x=X[..., 0]), "train.x is a tensor uint8 [6, 8, 9]"),
    "channels first": (
        images(x=torch.zeros(6, 3, 8, 8, dtype=torch.uint8)),
        "train.x has the shape [6, 3, 8, 8], channels first; return x.permute(0, 2, 3, 1)",
    ),
    "test images of another size": (
        facts(test=Images(X[:, :4], Y)),
        "train and test images of one size: they are [8, 9, 3] and [4, 9, 3] (height, width, channels)",
    ),
    "too few labels": (images(y=Y[:5]), "`y` of every image: train has 6 images and 5 in train.y"),
    "too many labels": (images(y=torch.cat([Y, Y])), "`y` of every image: train has 6 images and 12 in train.y"),
    "labels as a list": (images(y=Y.tolist()), "`y` as a tensor int64 [N]: train.y is a list of 6"),
    "small labels": (images(y=Y.int()), "`y` as a tensor int64 [N]: train.y is a tensor int32 [6]"),
    "labels in a column": (images(y=Y[:, None]), "`y` as a tensor int64 [N]: train.y is a tensor int64 [6, 1]"),
    "too few domains": (images(domain=Y[:5]), "`domain` of every image: train has 6 images and 5 in train.domain"),
    "clients as floats": (images(client=Y * 1.0), "`client` as a tensor int64 [N]: train.client is a tensor float32"),
    "a mean of one channel": (
        facts(mean=(0.5,)),
        "`mean` as a tuple of one number per channel: it is a tuple of 1, for 3",
    ),
    "a mean as a number": (facts(mean=0.5), "`mean` as a tuple of one number per channel: it is 0.5, for 3"),
    "a mean as an array": (
        facts(mean=np.zeros(3)),
        "`mean` as a tuple of one number per channel: it is an array float64",
    ),
    "a mean of 0 to 255": (facts(mean=(127.0,) * 3), "`mean` of pixels scaled to [0, 1], in [0, 1]: it holds 127.0"),
    "a mean that is no number": (facts(mean=(0.5, 0.5, np.nan)), "in [0, 1]: it holds nan"),
    "a deviation of one channel": (facts(std=(0.5,)), "`std` as a tuple of one number per channel: it is a tuple of 1"),
    "no deviation": (facts(std=(0.5, 0.0, 0.5)), "`std` of pixels scaled to [0, 1], in (0, 1]: it holds 0.0"),
    "a number of classes": (facts(classes=2), "`classes` as a tuple of names: it is 2"),
    "numbers of classes": (facts(classes=(0, 1)), "`classes` as a tuple of names: it is a tuple of 2, of 0 and so on"),
    "a class with a line break": (
        facts(classes=("a", "b\nc", "d")),
        r"`classes` as names without control characters: there is 'b\nc'",
    ),
    "a class twice": (facts(classes=("a", "b", "b")), "`classes` as different names: 'b' occurs 2 times"),
    "a digest that no record can hold": (facts(digest="v1.2"), "that content_digest returns as `digest`: it is 'v1.2'"),
    "no digest": (facts(digest=None), "the text that content_digest returns as `digest`: it is None"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_training_would_misread_is_refused(case):
    data, said = WRONG[case]
    place = rf"^dataset 'given', load \({__file__}, line \d+\) must return "
    with pytest.raises(HookError, match=place) as found:
        dataset_of(data).prepare(None)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "data",
    [
        FINE,
        images(x=torch.zeros(6, 8, 9, 3).to(torch.uint8).permute(0, 1, 2, 3)),
        facts(classes=["a", "b", "c"]),
        facts(mean=(0, 0, 0), std=(1, 1, 1)),
        facts(mean=tuple(np.full(3, 0.5, np.float32))),
    ],
)
def test_what_training_can_read_is_handed_on(data):
    assert dataset_of(data).prepare(None) is data


@pytest.mark.parametrize("shape", [(6, 1, 9, 7), (6, 1, 1, 1), (6, 3, 4, 4), (6, 3, 3, 3)])
def test_images_of_few_lines_are_not_taken_for_channels_first(shape):
    x = torch.zeros(shape, dtype=torch.uint8)
    data = facts(train=Images(x, Y), test=Images(x, Y), mean=(0.5,) * shape[3], std=(0.5,) * shape[3])
    assert dataset_of(data).prepare(None) is data


def test_a_dataset_that_draws_from_a_global_generator_is_refused(tmp_path):
    """Its images would differ from process to process."""

    @toy("dataset", "drawn")
    class Drawn(Dataset):
        def load(self, cache):
            return images(x=(255 * torch.rand(X.shape)).to(torch.uint8))

    with pytest.raises(
        HookError, match=r"dataset 'drawn', load \(.*\) draws from a global random generator; use one with"
    ):
        Drawn().prepare(tmp_path)
