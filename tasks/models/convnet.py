"""SphereFed's ConvNet."""

from torch import nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model
from fedspan.tasks.models.layers import Norm, conv_norm, norm_of, require_groups, require_larger_than

LAYERS = ((32, 1), (64, 2), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2))  # output channels, stride


@model("convnet")
class ConvNet(Model):
    """Seven 3x3 convolutions, SphereFed (2022), Table 11: 1,024 features at 32x32, a classifier without bias.

    The paper uses it only in its hardware experiments, at 32x32, and prints no padding; padding 1 gives the 2x2x256
    features of its classifier. Larger images give a larger map and so more features (4,096 at 64x64). The paper does
    not state the number of `groups` of group norm (App. F.1).
    """

    title = "ConvNet"
    summary = "Seven 3x3 convolutions, from SphereFed's hardware experiments."
    papers = ("dong2022",)
    wording = {"norm": "{} norm", "groups": "{} groups"}

    norm: Norm = "group"
    groups: int = 2

    def __post_init__(self) -> None:
        require_groups(self.groups, *sorted({width for width, _ in LAYERS}))

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        require_larger_than(16, self.name, shape)
        norm = norm_of(self.norm, self.groups)
        layers: list[nn.Module] = []
        inputs, (_, height, width) = shape[0], shape
        for outputs, stride in LAYERS:
            layers += [conv_norm(inputs, outputs, 3, stride, norm=norm), nn.ReLU()]
            inputs, height, width = outputs, -(-height // stride), -(-width // stride)
        features = inputs * height * width
        return Net(nn.Sequential(*layers, nn.Flatten()), nn.Linear(features, classes, bias=False))
