"""A model whose net does not fit its task is refused where it is built, in one line that names it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedspan.benchmark.errors import HookError
from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model
from tests.helpers import start, toy_cell
from tests.toys import toy

ROOT = Path(__file__).resolve().parents[2]
SHAPE, CLASSES = (1, 8, 8), 3


def model_of(make):
    """Return a model whose net `make` makes."""

    @toy("model", "odd")
    class Odd(Model):
        def build(self, shape, classes):
            return make()

    return Odd()


class Forward(nn.Module):
    """A layer whose forward is a function of the layer and the images."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(64, 5)
        self.seen = None

    def forward(self, x):
        return self.function(self, x)


class Logits(Net):
    def forward(self, x):
        return self.head(self.body(x))


def net(body=None, head=None, kind=Net):
    return kind(nn.Sequential(nn.Flatten(), body or nn.Linear(64, 5)), head or nn.Linear(5, CLASSES))


def divides(layer, x):
    return layer.layer(x) / layer.nothing


WRONG = {
    "nothing": (lambda: None, "it returned None; is a return missing?"),
    "a class": (lambda: Net, "it returned the class Net"),
    "no Net": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "it returned a Sequential"),
    "too many outputs": (lambda: net(head=nn.Linear(5, 4)), "its head returns [2, 4] for 2 images, not [2, 3]"),
    "too few outputs": (lambda: net(head=nn.Linear(5, 1)), "its head returns [2, 1] for 2 images, not [2, 3]"),
    "a head of other features": (lambda: net(head=nn.Linear(4, 3)), "its forward raised RuntimeError: "),
    "a body of other images": (lambda: net(nn.Linear(99, 5)), "its forward raised RuntimeError: "),
    "maps": (
        lambda: Net(nn.Linear(8, 5), nn.Linear(5, 3)),
        "its body returns [2, 1, 8, 5] for 2 images, not a row each",
    ),
    "logits alone": (lambda: net(kind=Logits), "its forward returned a Tensor, not (features [B, d], logits [B, class"),
    "an error": (
        lambda: net(Forward(divides)),
        f"its forward ({__file__}, line {divides.__code__.co_firstlineno + 1}) raised AttributeError: 'Forward' object",
    ),
    "draws": (lambda: net(nn.Sequential(nn.Linear(64, 5), nn.Dropout())), "its forward draws random numbers"),
    "weights that are to stay": (
        lambda: net(nn.Linear(64, 5).requires_grad_(False)),
        "its body.1.weight has requires_grad=False, which training ignores; keep it fixed with ",
    ),
    "statistics of all clients": (
        lambda: net(nn.Sequential(nn.Linear(64, 5), nn.BatchNorm1d(5, momentum=None))),
        "its BatchNorm has momentum=None",
    ),
    "an error in training": (
        lambda: net(Forward(lambda layer, x: layer.nothing if layer.training else layer.layer(x))),
        "its forward in training mode (",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_net_that_does_not_fit_is_refused_where_it_is_built(case):
    make, said = WRONG[case]
    model = model_of(make)
    line = type(model).build.__code__.co_firstlineno
    wanted = "a Net for images [1, 8, 8] (channels, height, width) of 3 classes"
    with pytest.raises(HookError) as found:
        model.prepare(SHAPE, CLASSES)
    assert str(found.value).startswith(f"model 'odd', build ({__file__}, line {line}) must return {wanted}: {said}")
    assert not re.search(r"\n", str(found.value))


def remembers(layer, x):
    layer.seen = x if layer.seen is None else layer.seen
    assert layer.seen.device == x.device
    return layer.layer(x)


FITS = {
    "looks at values": lambda layer, x: layer.layer(x) if x.sum() >= 0 else None,
    "has a constant": lambda layer, x: layer.layer(x * torch.ones(64)),
    "remembers an image": remembers,
    "draws in evaluation": lambda layer, x: layer.layer(
        x if layer.training else x + torch.rand(x.shape, device=x.device)
    ),
}


@pytest.mark.parametrize("case", FITS)
def test_a_net_that_fits_is_left_as_it_is(case):
    made = net(Forward(FITS[case])).double()
    made.body[1].layer.float().eval()
    modes = [module.training for module in made.modules()]
    before = torch.get_rng_state()
    assert model_of(lambda: made).prepare(SHAPE, CLASSES) is made
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in made.modules()] == modes
    assert made.body[1].seen is None


def test_norms_keep_their_statistics():
    made = Net(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()), nn.Linear(64, CLASSES))
    model_of(lambda: made).prepare(SHAPE, CLASSES)
    assert (made.body[0].running_var.item(), made.body[0].num_batches_tracked.item()) == (1, 0)


def test_what_a_model_makes_of_the_net_of_another_is_checked_alone():
    @toy("model", "half")
    class Half(Model):
        def build(self, shape, classes):
            return net(head=nn.Linear(5, 1))

    @toy("model", "whole")
    class Whole(Half):
        def build(self, shape, classes):
            made = super().build(shape, classes)
            made.head = nn.Linear(5, classes)
            return made

    assert Whole().prepare(SHAPE, CLASSES).head.out_features == CLASSES
    with pytest.raises(HookError, match="model 'half', build"):
        Half().prepare(SHAPE, CLASSES)


def test_a_net_without_values_is_not_looked_at():
    with torch.device("meta"):
        assert model_of(lambda: net(head=nn.Linear(5, 1))).prepare(SHAPE, CLASSES).head.out_features == 1


def test_a_cell_trains_a_checked_net_alone():
    with pytest.raises(HookError, match=r"model 'odd', build .* must return a Net for images"):
        start(toy_cell(model=model_of(lambda: Net(nn.Flatten(), nn.Linear(1, 1)))))


def test_a_run_imports_no_compiler():
    # torch's own takes seconds per process, which would count as time of the process's first cell
    script = "import sys; from tests.helpers import *; trained(toy_cell()); print({'torch._dynamo'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "set()"
