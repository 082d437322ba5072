"""Memory of this process."""

import resource
import sys
from pathlib import Path


def reset_peak() -> None:
    """Reset the largest resident size, if the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak() -> int:
    """Return the largest resident size in bytes since the last reset, if any."""
    try:
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
