"""FedAdagrad."""

from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import algorithm
from fedspan.benchmark.search import fixed, log
from fedspan.methods.adaptive import Adaptive


@algorithm("fedadagrad")
class FedAdagrad(Adaptive):
    """Reddi et al. 2021 (ICLR), Algorithm 2: Adagrad on the server, ``v = v + D^2``.

    Without momentum (beta1 0), as in the paper. The authors' code (optimization/ of google-research/federated) lists a
    server rate of 0.1 with a tau of 10^-2 as best on CIFAR100 and EMNIST, and recommends a tau of 10^-3 to begin with:
    the defaults here. The code released with FedDecorr 2023 keeps beta1 at 0.9; its script named after FedAdam runs
    this method with a server rate of 0.01 and a tau of 10^-3. FedExP's code 2023 has a rate of 0.1 on CIFAR10 and
    CIFAR100, but ``sqrt(v + 0.01)`` in place of ``sqrt(v) + tau``: its first steps are far smaller than those here.
    Tune lr and tau as for FedAdam. See `fedspan.methods.adaptive` for the rest.
    """

    title = "FedAdagrad"
    summary = "Adagrad on the server, with the mean update of the clients as its gradient."
    papers = ("reddi2021",)

    lr: Annotated[float, log(1e-3, 1.0, source="the paper tunes it for every task; the range is ours")] = 0.1
    beta1: Annotated[float, fixed("the usual Adagrad has no momentum")] = 0.0

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return v + squared
