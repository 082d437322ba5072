"""A folder with every kind of file that a command reads, several of each kind, and what its board shows.

Each kind has cells (or boards, or pages) of its own, so that one round of commands meets many damaged files at once and
none of them hides another. Nobody damages what is `GOOD`: the cell that the other boards share.
"""

import json
import re
import shutil
from pathlib import Path

from fedspan.benchmark.cli.main import main
from fedspan.benchmark.records.model import STAGES
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.verification import Verification
from fedspan.benchmark.report.summary import FILE, read, to_json
from fedspan.benchmark.running.cell_run import Outcome, make_record
from fedspan.benchmark.running.leases import Owner
from fedspan.benchmark.spec.compose import override_words
from fedspan.benchmark.spec.overrides import command_of
from fedspan.benchmark.spec.plan import plan_grid
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.saving import save
from tests.fuzz.damage import as_json, as_yaml, header_of, sealed, sealed_header, with_header
from tests.helpers import without_clock

QUICK = ("workers=1", "tracking=false", "checkpoint_seconds=1000")
GOOD = "good"
ONE = dict.fromkeys(
    ("record", "sidecar", "verification", "checkpoint", "trained model", "failure", "lease", "status", "summary",
     "board", "protocol"), 1,
)  # fmt: skip
MANY = {
    "record": 16, "sidecar": 2, "verification": 4, "checkpoint": 8, "trained model": 8, "failure": 8, "lease": 2,
    "status": 2, "summary": 6, "board": 3, "protocol": 1,
}  # fmt: skip
READ = ("record", "sidecar", "verification", "summary", "board", "protocol")  # by commands that compute nothing
TAKEN_UP = ("checkpoint", "trained model", "failure", "lease", "status")  # by those that compute, of cells to compute
KINDS = (*READ, *TAKEN_UP)
PAGES = ("summary", "board", "protocol")  # which no cell has
BOARD = {
    "title": "Mutations",
    "base": {
        "dataset": "digits", "dataset.limit": 60, "clients": 2, "partition": "iid", "model.width": 2,
        "model.features": 4, "protocol": "quick", "algorithm": "fedprox", "addons": ["personal_head"],
    },
    "grid": [{"seed": [0]}],
    "tables": [{"rows": ["method"], "columns": ["partition"], "metric": "final.accuracy"}],
}  # fmt: skip
PROTOCOL = {"description": "Quick.", "rounds": 2, "local_epochs": 1, "tuned": [{"when": {"seed": 900}, "set": {}}]}
OF_PAGES = 1000  # the clients of the first page that lies there beside the board's: none of its tasks has so many


class Workplace:
    """The folder, the `cells` of its board by kind, and what an undisturbed run made of each.

    `counts` says how many files of each kind it has.
    """

    def __init__(self, folder, counts):
        self.folder, self.counts = folder, counts
        seeds = {GOOD: 1} | {kind: count for kind, count in counts.items() if kind not in PAGES}
        for name in ("boards", "protocols"):
            (folder / "leaderboards" / name).mkdir(parents=True)
        as_yaml(
            folder / "leaderboards/boards/mutations.yaml",
            {**BOARD, "grid": [{"seed": list(range(sum(seeds.values())))}]},
        )
        as_yaml(folder / "leaderboards/protocols/quick.yaml", PROTOCOL)
        assert main(["run", "-m", "board=mutations", *QUICK]) == 0
        planned = iter(plan_grid({"board": ["mutations"]}))
        self.cells = {kind: [next(planned) for _ in range(count)] for kind, count in seeds.items()}
        results = Results(Path("results"))
        self.records = {one.cell.key: results.read(one.cell.key) for mine in self.cells.values() for one in mine}
        self._add_others(results)
        assert main(["report", "board=mutations"]) == 0
        self._add_pages()
        shutil.copytree(folder, folder.with_name("kept"), symlinks=True)

    def _add_others(self, results):
        beside = {
            "sidecar": self._add_sidecar, "verification": self._add_verification, "checkpoint": self._add_checkpoint,
            "failure": self._add_failure, "lease": self._add_lease, "status": self._add_status,
        }  # fmt: skip
        for kind, cells in self.cells.items():
            for planned in cells:
                cell = planned.cell
                if kind in TAKEN_UP:
                    results.path(cell.key).unlink()
                if kind != "trained model":
                    results.trained_model_path(cell.train_key).unlink()
                if kind in beside:
                    beside[kind](results, planned)
        folder = self.folder / "leaderboards"
        for number in range(self.counts["board"]):
            as_yaml(folder / f"boards/board-{number}.yaml", BOARD)
        for number in range(self.counts["protocol"]):
            as_yaml(folder / f"protocols/quick-{number}.yaml", PROTOCOL)
            uses = {**BOARD, "base": {**BOARD["base"], "protocol": f"quick-{number}"}}
            as_yaml(folder / f"boards/uses-{number}.yaml", uses)

    def _add_sidecar(self, results, planned):
        path = results.path(planned.cell.key)
        stored = json.loads(path.read_text())
        as_json(path.with_name(f"{path.stem}.scores.json"), stored["scores"])
        as_json(path, {**stored, "scores": {"sidecar": f"{path.stem}.scores.json"}})

    def _add_verification(self, results, planned):
        Verification(
            key=planned.cell.key, record=digest_of(self.records[planned.cell.key]), outcome="identical",
            compared="digests", date="2026-11-22T10:00:00+00:00", processor="A", instructions="AVX2",
            numerics="portable", device="cpu", versions={"torch": "2"}, sources={"a": "b"}, engine="e",
            sample={"size": 1, "of": 3, "sample_seed": 4},
        ).write(results.verifications)  # fmt: skip

    def _add_checkpoint(self, results, planned):
        run = Run(planned.cell, How(command="fedspan run"))
        run.advance()
        save(run, results.checkpoint(planned.cell.key))

    def _add_failure(self, results, planned):
        words = override_words({key: value for key, value in planned.overrides.items() if key != "board"})
        failed = make_record(planned.cell, How(command=command_of(words)), Outcome("failed", "it broke"), None)
        results.write(failed)

    def _add_lease(self, results, planned):
        results.leases.mkdir(exist_ok=True)
        as_json(results.leases / f"{planned.cell.key}.1.json", {**vars(Owner.me()), "pid": 2**22 + 1})

    def _add_status(self, results, planned):
        results.status.mkdir(exist_ok=True)
        about = {"label": "x", "round": 1, "rounds": 2, "clients": 2}
        as_json(results.status / f"{planned.cell.key}.json", about)

    def _add_pages(self):
        """Put pages of boards beside it that are rendered elsewhere: each has one result, of a task of its own."""
        pages = Path("leaderboards/pages")
        whole = json.loads((pages / "mutations" / FILE).read_text())
        for number in range(self.counts["summary"]):
            [result] = whole["results"]
            result = {**result, "task": {**result["task"], "clients": OF_PAGES + number}, "seeds": {"0": 50.0 + number}}
            page = f"page-{number}"
            (pages / page).mkdir()
            found = {**whole, "board": page, "page": f"{page}/", "results": [result]}
            sealed(pages / page / FILE, found)
            assert to_json(read(pages / page / FILE))

    def files(self, kind):
        """Return the files of a kind that may be damaged."""
        results, keys = Path("results"), [one.cell.key for one in self.cells.get(kind, ())]
        if kind == "summary":
            return [Path("leaderboards/pages", f"page-{number}", FILE) for number in range(self.counts[kind])]
        if kind in ("board", "protocol"):
            name = "boards/board" if kind == "board" else "protocols/quick"
            return [Path("leaderboards", f"{name}-{number}.yaml") for number in range(self.counts[kind])]
        if kind == "verification":
            found = {json.loads(path.read_text())["key"]: path for path in results.glob("verifications/*.json")}
            return [found[key] for key in keys]
        name = {
            "record": "records/{}.json", "sidecar": "records/{}.scores.json", "failure": "failures/{}.json",
            "lease": "leases/{}.1.json", "status": "status/{}.json", "checkpoint": "checkpoints/{}.safetensors",
        }  # fmt: skip
        if kind == "trained model":
            return [results / "trained" / f"{one.cell.train_key}.safetensors" for one in self.cells[kind]]
        return [results / name[kind].format(key) for key in keys]

    @staticmethod
    def content(kind, path):
        """Return what is in a file of a kind."""
        if kind in ("checkpoint", "trained model"):
            return header_of(path)
        return (BOARD if kind == "board" else PROTOCOL) if path.suffix == ".yaml" else json.loads(path.read_text())

    @staticmethod
    def writers(kind):
        """Return how a file of a kind may be written: as it is, or sealed anew if it has a digest."""
        if kind in ("checkpoint", "trained model"):
            return [with_header, sealed_header]
        if kind in ("board", "protocol"):
            return [as_yaml]
        return [as_json, sealed] if kind in ("record", "verification", "summary") else [as_json]

    def restore(self):
        """Put everything back."""
        for name in ("results", "leaderboards", "collected"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            if (kept := self.folder.with_name("kept") / name).exists():
                shutil.copytree(kept, self.folder / name, symlinks=True)

    def boards(self):
        """Return the settings that choose each board beside the large one."""
        return [
            *(f"board=board-{number}" for number in range(self.counts["board"])),
            *(f"board=uses-{number}" for number in range(self.counts["protocol"])),
        ]

    def shown(self):
        """Return the accuracy by seed that the page of the board has, and that by clients of the pages beside it."""
        found = read(Path("leaderboards/pages/mutations", FILE))
        mine = {int(seed): value for result in found.results for seed, value in result.seeds.items()}
        page = Path("leaderboards/pages/index.html").read_text()
        data = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
        clients = [task[3] for task in data["tasks"]]
        return mine, {clients[task]: mean for _, task, mean, *_ in data["results"] if clients[task] != 2}


def accuracy_of(record):
    """Return the accuracy that pages show of a record: of the last stage that has one, the mean over clients if any."""
    stages = [record["scores"].get(stage, {}) for stage in reversed(STAGES)]
    found = [scores.get(name) for scores in stages for name in ("client_accuracy", "accuracy")]
    return next(value for value in found if value is not None)


def numbers_of(record):
    """Return what a record says, but for what the clock and the machine's other work change."""
    return {name: record[name] for name in ("key", "spec", "status", "scores", "curve", "digests")} | {
        "compute": without_clock(record["compute"])
    }
