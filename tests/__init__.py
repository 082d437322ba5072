"""The tests, in an environment of their own: what a user set for FedSpan, MLflow, git or a terminal is left out."""

import os

KEPT = ("FEDSPAN_TEST_DATA", "FEDSPAN_AXE", "FEDSPAN_MUTATIONS_SEED")  # they tell tests where things are
TERMINAL = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")
GIT = {"commit.gpgsign": "false", "tag.gpgsign": "false", "core.autocrlf": "false"}

for name in list(os.environ):
    if (name.startswith(("FEDSPAN_", "MLFLOW_")) and name not in KEPT) or name in TERMINAL:
        del os.environ[name]
os.environ |= {"NO_PROXY": "*", "no_proxy": "*", "GIT_CONFIG_COUNT": str(len(GIT))}
for number, (setting, value) in enumerate(GIT.items()):
    os.environ |= {f"GIT_CONFIG_KEY_{number}": setting, f"GIT_CONFIG_VALUE_{number}": value}
