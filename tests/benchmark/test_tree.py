import math

import numpy as np
import pytest
import torch

from fedspan.benchmark import tree

A = {"w": torch.tensor([[1.0, -2.0], [3.0, 4.0]]), "b": torch.tensor([5.0])}
B = {"b": torch.tensor([1.0]), "w": torch.ones(2, 2)}


def plain(a):
    return {path: leaf.tolist() for path, leaf in a.items()}


def test_arithmetic_goes_leaf_by_leaf_whatever_the_order_of_names():
    assert plain(tree.add(A, B)) == {"w": [[2, -1], [4, 5]], "b": [6]}
    assert plain(tree.sub(A, B)) == {"w": [[0, -3], [2, 3]], "b": [4]}
    assert plain(tree.scale(A, -2)) == {"w": [[-2, 4], [-6, -8]], "b": [-10]}
    assert plain(tree.zeros(A)) == {"w": [[0, 0], [0, 0]], "b": [0]}
    assert tree.sqdist(A, B).item() == 0 + 9 + 4 + 9 + 16


def test_a_missing_leaf_is_an_error():
    with pytest.raises(KeyError):
        tree.add(A, {"w": A["w"]})


def test_a_clone_shares_no_memory():
    copy = tree.clone(A)
    copy["b"].add_(1)
    assert A["b"].item() == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_root_and_its_slope_are_those_of_all_positive_numbers(dtype):
    kind = torch.finfo(dtype)
    least, largest = math.log10(kind.smallest_normal * kind.eps), math.log10(kind.max)
    x = torch.logspace(least + 1e-3, largest - 1e-3, 2000, dtype=torch.float64).to(dtype).requires_grad_()
    found = tree.root(x)
    found.sum().backward()
    expected = np.sqrt(x.detach().double().numpy())
    np.testing.assert_allclose(found.detach().double().numpy(), expected, rtol=4 * kind.eps)
    np.testing.assert_allclose(x.grad.double().numpy(), 0.5 / expected, rtol=4 * kind.eps)


def test_bytes_are_counted_by_type():
    assert (
        tree.nbytes(
            {"f": torch.zeros(3, 2), "d": torch.zeros(2, dtype=torch.float64), "i": torch.zeros((), dtype=torch.int32)}
        )
        == 24 + 16 + 4
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_makes_a_tree_not_finite(bad):
    assert tree.finite(A)
    assert tree.finite({"n": torch.tensor([1])})
    assert not tree.finite({**A, "z": torch.tensor([0.0, bad])})


def test_a_digest_sees_names_types_shapes_and_bits_but_not_the_order():
    same = {"b": A["b"].clone(), "w": A["w"].t().contiguous().t()}
    assert tree.digest(same) == tree.digest(A)
    others = [
        {**A, "b": torch.tensor([-5.0])},
        {**A, "b": torch.tensor(5.0)},
        {**A, "b": torch.tensor([5.0], dtype=torch.float64)},
        {"w": A["w"], "c": A["b"]},
        {**A, "b": torch.tensor([5.0]).nextafter(torch.tensor(6.0))},
    ]
    assert len({tree.digest(t) for t in (A, *others)}) == 6
