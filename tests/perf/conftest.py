import statistics
import time

import pytest
import torch


@pytest.fixture
def compare(benchmark):
    """Run two pieces of work in turn on one core and store the ratio of their median seconds."""

    def run(ours, reference, *, against: str, target: str, repeats: int = 3):
        torch.set_num_threads(1)
        seconds = {"ours": [], "reference": []}

        def both():
            for name, work in (("reference", reference), ("ours", ours)):
                start = time.perf_counter()
                work()
                seconds[name].append(time.perf_counter() - start)

        benchmark.pedantic(both, rounds=repeats, warmup_rounds=1)
        ours_median, reference_median = (statistics.median(seconds[name][1:]) for name in ("ours", "reference"))
        benchmark.extra_info.update(
            ours_s=ours_median, reference_s=reference_median, ratio=ours_median / reference_median,
            against=against, target=target, torch=torch.__version__,
        )  # fmt: skip

    return run


def pytest_terminal_summary(terminalreporter, config):
    session = getattr(config, "_benchmarksession", None)
    measured = [bench for bench in getattr(session, "benchmarks", []) if "ratio" in bench.extra_info]
    if measured:
        terminalreporter.section("time as a ratio to the reference, measured side by side on one core")
    for bench in measured:
        info = bench.extra_info
        terminalreporter.write_line(
            f"{bench.name}: {info['ratio']:.3f} of {info['against']} "
            f"({info['ours_s']:.2f} s against {info['reference_s']:.2f} s; target {info['target']})"
        )
