"""SphereFed."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.component import Setting, Step, addon
from fedspan.benchmark.errors import Incompatible, require
from fedspan.benchmark.head import criterion, in_head
from fedspan.benchmark.net import Net, Unit
from fedspan.benchmark.search import fixed
from fedspan.methods.addons.ffc import FFC

TAMMES_STEPS, TAMMES_LR, TAMMES_MOMENTUM = 10_000, 0.1, 0.9


@addon("spherefed")
class SphereFed(FFC):
    """Dong et al. 2022 (ECCV): unit features, a fixed orthonormal head, squared loss, then calibration (FFC).

    Each ingredient has its own switch, for the ablations of Tables 3 and 9:

    - `head` (Eq. 4, App. D): ``orthonormal`` rows by QR of a random matrix, ``tammes`` rows with the largest spread,
      ``random`` (the framework's initialisation, Sec. 5.3 "Fix (R)"), all fixed and without bias; ``trained`` keeps the
      model's own head;
    - `unit`: scale features to unit length (Sec. 4.1, "Norm");
    - `criterion` (Eq. 5): ``mse`` is the squared error to one-hot labels over C, ``ce`` cross-entropy;
    - `temperature` multiplies the logits before the loss (Sec. 4.2, tau W z; tuned for ``ce``, value not stated);
    - `ffc`: calibrate with `ridge` and `every`, like the add-on ``ffc``.

    To compare calibrations of one trained model, set ``ffc=false`` and add ``ffc``, ``ccvr`` or ``oracle_head``. The
    paper retunes the learning rate for the squared loss (over 0.005, 0.01, 0.05, 0.1, 0.5, 0.8, 1).
    """

    title = "SphereFed"
    summary = "Features on the unit sphere, a fixed orthonormal head, squared loss, then a closed-form calibration."
    papers = ("dong2022",)
    wording = {
        "head": "{} head",
        "unit": {False: "features of any length", True: "unit features"},
        "criterion": {"ce": "cross-entropy", "mse": "squared error"},
        "ffc": {False: "not calibrated", True: "calibrated"},
    }

    head: Literal["orthonormal", "tammes", "random", "trained"] = "orthonormal"
    unit: bool = True
    criterion: Literal["mse", "ce"] = "mse"
    temperature: Annotated[float, fixed("for cross-entropy alone; the paper states no value")] = 1.0
    ffc: bool = True
    neutral = {"head": "trained", "unit": False, "criterion": "ce", "ffc": False}
    same_shapes = {"head": {"tammes": "random"}}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.temperature > 0, "addon.spherefed.temperature", "must be positive", self.temperature)
        for field in ("ridge", "every"):
            value = getattr(self, field)
            require(self.ffc or not value, f"addon.spherefed.{field}", "needs addon.spherefed.ffc=true", value)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset(
            (() if self.ffc else ("stats", "calibrate"))
            + (() if self.criterion == "mse" or self.temperature != 1 else ("loss",))
            + (() if self.head != "trained" else ("trainable",))
            + (() if self.head != "trained" or self.unit else ("net",))
        )

    def net(self, net: Net, setting: Setting) -> Net:
        body = nn.Sequential(net.body, Unit()) if self.unit else net.body
        return Net(body, net.head if self.head == "trained" else self._fixed_head(net.head))

    def _fixed_head(self, own: nn.Linear) -> nn.Linear:
        dimensions, classes = own.in_features, own.out_features
        head = nn.Linear(dimensions, classes, bias=False)
        if self.head == "orthonormal":
            if classes > dimensions:
                raise Incompatible(
                    f"'spherefed' cannot make {classes} orthonormal rows in {dimensions} feature dimensions; "
                    "use a wider model or addon.spherefed.head=tammes"
                )
            head.weight.data = orthonormal_rows(classes, dimensions).float()
        elif self.head == "tammes":
            head.weight.data = spread_rows(classes, dimensions)
        return head

    def trainable(self, path: str) -> bool:
        return self.head == "trained" or not in_head(path)

    def loss(self, step: Step) -> Tensor:
        return criterion(self.criterion, self.temperature * step.logits, step.y)


def orthonormal_rows(rows: int, dimensions: int) -> Tensor:
    """Return [rows, dimensions] with W W' = I, uniformly distributed, in float64."""
    q, r = torch.linalg.qr(torch.randn(dimensions, rows, dtype=torch.float64))
    return (q * r.diagonal().sign()).T.contiguous()


def spread_rows(rows: int, dimensions: int) -> Tensor:
    """Return unit rows [rows, dimensions] that are far apart.

    Mettes et al. 2019 (NeurIPS): gradient descent on the mean over rows of the largest cosine to another row, with the
    settings of SphereFed 2022, App. D (learning rate 0.1, momentum 0.9, 10^4 steps); rows are rescaled to unit length
    after each step. Steps of constant length end in an oscillation, so the best rows seen are returned.
    """
    w = F.normalize(torch.randn(rows, dimensions), dim=1)
    if rows == 1:
        return w
    velocity, best, smallest = torch.zeros_like(w), w, torch.inf
    itself = 2 * torch.eye(rows)
    for _ in range(TAMMES_STEPS):
        cosine, nearest = (w @ w.T - itself).max(1)
        if (largest := cosine.max().item()) < smallest:
            best, smallest = w, largest
        gradient = w[nearest].index_add(0, nearest, w) / rows
        velocity = TAMMES_MOMENTUM * velocity + gradient
        w = F.normalize(w - TAMMES_LR * velocity, dim=1)
    return best
