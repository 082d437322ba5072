"""Structured DeCov."""

from typing import Annotated

import torch
from torch import Tensor

from fedspan.benchmark.component import Setting, addon
from fedspan.benchmark.errors import Incompatible, require
from fedspan.benchmark.net import Net
from fedspan.benchmark.search import choice
from fedspan.methods.addons.decov import DeCov, squared_covariances


@addon("structured_decov")
class StructuredDeCov(DeCov):
    """Xiong et al. 2016 (ICDM): DeCov between groups of features only; features of one group may covary.

    beta/2 times the sum of squared covariances between features of different groups; `groups` is the number of groups
    of consecutive features, as equal in size as possible. One feature per group gives DeCov.

    The paper's abstract also encourages strong connections within a group. We know of no public text or code of that
    term, so it is left out: covariances within a group are neither penalised nor rewarded. FedDecorr 2023, Table 6,
    reports the method without naming beta, groups or terms.
    """

    title = "Structured DeCov"
    summary = "Penalise covariances between groups of features; features of one group may covary."
    papers = ("xiong2016",)
    wording = {"groups": "{} groups"}

    groups: Annotated[int, choice(2, 4, 8, 16, source="ours; no source names the groups")] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.groups >= 2, "addon.structured_decov.groups", "must be at least 2", self.groups)

    def net(self, net: Net, setting: Setting) -> Net:
        if self.groups > net.head.in_features:
            raise Incompatible(
                f"'structured_decov' cannot make {self.groups} groups of {net.head.in_features} features"
            )
        return net

    def allowed(self, z: Tensor) -> Tensor:
        return torch.stack([squared_covariances(part) for part in z.tensor_split(self.groups, dim=1)]).sum()
