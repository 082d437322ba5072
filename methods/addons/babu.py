"""BABU."""

from fedspan.benchmark.component import Component, addon
from fedspan.benchmark.head import in_head


@addon("babu")
class BABU(Component):
    """Oh et al. 2022 (ICLR): train only the body, under a fixed, randomly initialised head.

    SphereFed 2022, Tables 2 and 3, reports it as "BABU" and "Fix (R)". Add ``personal_head`` for the personalised
    accuracy of the original paper.
    """

    title = "BABU"
    summary = "Train only the body, under a fixed, randomly initialised head."
    papers = ("oh2022", "dong2022")

    def trainable(self, path: str) -> bool:
        return not in_head(path)
