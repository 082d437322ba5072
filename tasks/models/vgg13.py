"""VGG13 for small images."""

from torch import nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model
from fedspan.tasks.models.layers import Norm, conv_norm, norm_of, require_groups, require_larger_than

WIDTHS = (64, 128, 256, 512, 512)


@model("vgg13")
class VGG13(Model):
    """VGG13 (Simonyan and Zisserman 2015) as SphereFed (2022) uses it, Table 12: 512 features, no bias.

    Five groups of two 3x3 convolutions. The table's pooling (2x2 after the first four groups, TIN_S after the fifth,
    then an average over 1x1) would give 2x2x512 numbers to a classifier of 512 inputs. Here all five groups end in 2x2
    maximum pooling, and the average is over the last map: 1x1 at 32 pixels, 2x2 (TIN_S) at 64. The table prints 256
    channels for the normalisation of the last four convolutions; here they have 512. The number of `groups` of group
    norm (App. F.1) is not stated.
    """

    title = "VGG13"
    summary = "Ten 3x3 convolutions in five groups, as in SphereFed."
    papers = ("simonyan2015", "dong2022")
    wording = {"norm": "{} norm", "groups": "{} groups"}

    norm: Norm = "group"
    groups: int = 2

    def __post_init__(self) -> None:
        require_groups(self.groups, *sorted(set(WIDTHS)))

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        require_larger_than(31, self.name, shape)
        norm = norm_of(self.norm, self.groups)
        layers: list[nn.Module] = []
        inputs = shape[0]
        for outputs in WIDTHS:
            for _ in range(2):
                layers += [conv_norm(inputs, outputs, 3, norm=norm), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return Net(body, nn.Linear(inputs, classes, bias=False))
