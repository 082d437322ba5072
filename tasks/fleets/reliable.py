"""Clients that always finish and arrive."""

from fedspan.benchmark.fleet import Fleet, fleet


@fleet("reliable")
class Reliable(Fleet):
    """Every sampled client takes all its local steps and reaches the server (McMahan et al. 2017, Algorithm 1)."""

    title = "Reliable clients"
    summary = "Every sampled client takes all its steps and reaches the server."
    papers = ("mcmahan2017",)
