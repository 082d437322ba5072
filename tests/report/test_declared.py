"""What boards declare of their pages is what records can fill."""

import json
from pathlib import Path

from fedspan.benchmark.report.declared import check_declared
from fedspan.benchmark.report.frame import _cost_of
from fedspan.benchmark.report.metric import check_metric
from fedspan.benchmark.spec.board import board_files

RECORDS = Path(__file__).parents[2] / "results" / "records"


def test_no_published_board_is_refused():
    check_declared({"board": [name for name in board_files() if name != "everything"]})


def test_every_score_and_cost_of_a_published_record_is_a_metric_that_a_table_may_have():
    found = set()
    for path in RECORDS.glob("*.json"):
        record = json.loads(path.read_bytes())
        found |= {f"{stage}.{name}" for stage, scores in record["scores"].items() for name in scores}
        found |= {f"cost.{name}" for name in _cost_of(record)}
    assert len(found) > 30
    for metric in found:
        check_metric(metric)
