"""Methods that fail in every way a method can fail; installed as a third-party plugin by the fixture `toys`."""

import os
import time
from pathlib import Path
from typing import Annotated

from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.search import choice
from fedspan.benchmark.tree import scale


@algorithm("toy_slow")
class Slow(Component):
    """Toys 2026: FedAvg that takes its time."""

    seconds: float = 0.05

    def server(self, delta, agg):
        time.sleep(self.seconds)
        return delta, {}


@algorithm("toy_held")
class Held(Component):
    """Toys 2026: FedAvg that stays in the round `at`, counted from 0, as long as the file `until` is absent."""

    at: int = 0
    until: str = "go"

    def server(self, delta, agg):
        while agg.round == self.at and not Path(self.until).exists():
            time.sleep(0.01)
        return delta, {}


@algorithm("toy_raises")
class Raises(Component):
    """Toys 2026: raises in the second round, as long as the file `until` is absent."""

    until: str = ""

    def server(self, delta, agg):
        if agg.round == 1 and not (self.until and Path(self.until).exists()):
            raise RuntimeError("the toy\nbroke")
        return delta, {}


@algorithm("toy_quits")
class Quits(Component):
    """Toys 2026: ends the whole program."""

    def server(self, delta, agg):
        raise SystemExit("enough")


@algorithm("toy_dies")
class Dies(Component):
    """Toys 2026: takes its process down without a word; with `once`, only if that file is absent."""

    once: str = ""

    def server(self, delta, agg):
        if agg.round == 1 and not (self.once and Path(self.once).exists()):
            if self.once:
                Path(self.once).touch()
            os._exit(9)
        return delta, {}


@algorithm("toy_diverges")
class Diverges(Component):
    """Toys 2026: steps much too far."""

    def server(self, delta, agg):
        return scale(delta, 1e38 if agg.round else 1.0), {}


@algorithm("toy_picky")
class Picky(Component):
    """Toys 2026: works nowhere."""

    def check(self, setting):
        raise Incompatible("toy_picky needs 1,000 classes")


@algorithm("toy_spaced")
class Spaced(Component):
    """Toys 2026: FedAvg whose server multiplies the update, as far as a search goes."""

    factor: Annotated[float, choice(0.0, 0.5, 1.0, source="Toys 2026")] = 0.0
    plain: float = 1.0

    def server(self, delta, agg):
        return scale(delta, self.factor * self.plain), {}
