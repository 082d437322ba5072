"""SENet18: ResNet18 with squeeze and excitation in each block."""

from torch import Tensor, nn

from fedspan.benchmark.errors import require
from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model
from fedspan.tasks.models.layers import (
    Norm,
    Residual,
    first_stride,
    norm_of,
    projection,
    require_groups,
    require_larger_than,
    residual_body,
)

WIDTHS = (64, 128, 256, 512)


@model("senet18")
class SENet18(Model):
    """SENet18 (Hu et al. 2018) as SphereFed (2022) uses it, Table 13: 512 features, a classifier without bias.

    SphereFed's ResNet18 with squeeze and excitation at the end of each block. Details that the table omits are Hu et
    al.'s: shortcuts, excitation before the addition, `reduction` 16 (two linear layers with bias). The table prints a
    norm of 256 channels behind a convolution with 512 (here 512) and block labels that belong on the stages' first
    blocks. The number of `groups` of group norm (App. F.1) is not stated.
    """

    title = "SENet18"
    summary = "ResNet18 with squeeze and excitation in each block, as in SphereFed."
    papers = ("hu2018", "dong2022")
    wording = {"norm": "{} norm", "groups": "{} groups"}

    norm: Norm = "group"
    groups: int = 2
    reduction: int = 16

    def __post_init__(self) -> None:
        require_groups(self.groups, *WIDTHS)
        fits = 1 <= self.reduction <= WIDTHS[0]
        require(fits, "model.reduction", f"must lie in 1..{WIDTHS[0]}", self.reduction)

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        require_larger_than(8, self.name, shape)
        norm = norm_of(self.norm, self.groups)

        def block(inputs: int, outputs: int, stride: int) -> nn.Module:
            shortcut = projection(inputs, outputs, stride, norm)
            return Residual(inputs, outputs, stride, norm, shortcut, Excitation(outputs, self.reduction))

        body = residual_body(shape[0], WIDTHS, (first_stride(shape), 2, 2, 2), 2, norm, block)
        return Net(body, nn.Linear(WIDTHS[-1], classes, bias=False))


class Excitation(nn.Module):
    """Squeeze and excitation: scales each channel of [B, C, H, W] by a number in (0, 1) from the channels' means."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        hidden = channels // reduction
        self.weigh = nn.Sequential(
            nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels), nn.Sigmoid()
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x.mean((2, 3)))[:, :, None, None]
