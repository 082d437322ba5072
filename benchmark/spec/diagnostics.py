"""Settings of measurements beyond scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedspan.benchmark.errors import require


@dataclass(frozen=True)
class Diagnostics:
    """Measurements in and after a round. `clients` selects local models to compare with the global one.

    - `round` is counted from 1; 0 is the last one.
    - `spectra`: singular values of representations. `top` of them are stored; a value is significant if its natural
      logarithm exceeds `log_threshold` (the papers' example is -2; they do not name the base).
    - `alignment`: agreement between the classifiers of all clients of the round (SphereFed 2022, Eq. 2 and 3).
    - `penalties`: the components' penalties in each local epoch of each client, without their coefficients
      (FedDecorr 2023, Fig. 11).
    - `shares`: number of images of each class per client (FedDecorr 2023, Fig. 1a).
    - `spaces`: alignment of the singular spaces of a linear body and of the classifier (FedDecorr 2023, Fig. 6).
    - `embedding`: representations of at most `images` test images of `classes` (empty: all), in two dimensions by
      ``tsne`` or on the unit ``sphere``, under the local models of `clients`, or under the global one if it is empty.
    """

    spectra: bool = False
    clients: tuple[int, ...] = ()
    top: int = 100
    log_threshold: float = -2.0
    alignment: bool = False
    penalties: bool = False
    shares: bool = False
    spaces: bool = False
    embedding: Literal["none", "tsne", "sphere"] = "none"
    classes: tuple[int, ...] = ()
    images: int = 300
    round: int = 0

    def __post_init__(self) -> None:
        require(self.round >= 0, "diagnostics.round", "must be 0 (the last round) or more", self.round)
        require(self.top >= 1, "diagnostics.top", "must be at least 1", self.top)
        require(self.images >= 3, "diagnostics.images", "must be at least 3", self.images)

    def what(self) -> dict[str, Any]:
        """Return the settings that change a record: those of active measurements only."""
        switches = ("spectra", "alignment", "penalties", "shares", "spaces", "embedding")
        own = {"spectra": ("clients", "top", "log_threshold"), "embedding": ("clients", "classes", "images")}
        on = [name for name in switches if getattr(self, name) not in (False, "none")]
        settings = {name: getattr(self, name) for switch in on for name in (switch, *own.get(switch, ()))}
        return settings | {"round": self.round} if on and self.round else settings

    @property
    def when(self) -> str:
        """The round, in words."""
        return f"round {self.round}" if self.round else "the last round"

    def local_models(self, participants: Sequence[int]) -> tuple[int, ...]:
        """Return the clients whose local models are measured in the round."""
        if self.alignment:
            return tuple(participants)
        return self.clients if self.spectra or self.embedding != "none" else ()
