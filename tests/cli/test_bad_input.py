"""Every mistake is answered with one line on standard error, a status that is not 0, and nothing lost."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from fedspan.benchmark import registry
from fedspan.benchmark.cli.doctor import _checks
from fedspan.benchmark.spec.compose import resolve
from tests.cli.conftest import ONE, QUICK, ROOT, failures, records

MISTAKES = {
    # names
    "": "name a command: run, tune, retry, list,",
    "rum": "unknown command 'rum'; did you mean 'run'?",
    "run algorithm=fedproxx": "unknown algorithm 'fedproxx'; did you mean 'fedprox'?",
    "run -m algorithm=fedavg,fedproxx": "unknown algorithm 'fedproxx'; did you mean 'fedprox'?",
    "run dataset=digit": "unknown dataset 'digit'; did you mean 'digits'?",
    "run protocol=digit": "unknown protocol 'digit'; did you mean 'digits'?",
    "run addons=[fedprox]": "'fedprox' is not an addon but an algorithm; write algorithm=fedprox",
    "run plugins=3": "plugins must be the path of a Python file, or a list of paths, got 3",
    "run plugins=absent.py": "the plugin file absent.py does not exist",
    "run addons=[feddecor]": "unknown addon 'feddecor'; did you mean 'feddecorr'?",
    "run board=digit": "unknown board 'digit'; did you mean 'digits'?",
    "run board=absent.yaml": "there is no board file absent.yaml in /",
    "plan board=digits.yaml": "there is no board file digits.yaml in /",
    "plan board=leaderboards/boards/digitz.yaml": "there is no board file leaderboards/boards/digitz.yaml in /",
    "run algorithm=SCAFFOLD": "unknown algorithm 'SCAFFOLD'; did you mean 'scaffold'?",
    "run dataset=CIFAR1": "unknown dataset 'CIFAR1'; did you mean 'cifar10'?",
    "run addons=[FedDecorr]": "unknown addon 'FedDecorr'; did you mean 'feddecorr'?",
    "run scale=smal": "unknown scale 'smal'; did you mean 'small'?",
    "run executor=lop": "unknown executor 'lop'; did you mean 'loop'?",
    "run -m launcher=jobli": "unknown launcher 'jobli'; did you mean 'joblib'?",
    "plan executor=lop": "unknown executor 'lop'; did you mean 'loop'?",
    "plan launcher=jobli": "unknown launcher 'jobli'; did you mean 'joblib'?",
    "plan diagnostics.spectra=true diagnostics.round=99": "diagnostics.round is 99, but there are 20 rounds; 0 is the",
    "run launcher=slurm": "unknown launcher 'slurm'; for SLURM use submitit",
    "run cleints=3": "unknown setting 'cleints'; did you mean 'clients'?",
    "run -m model.widht=3": "unknown setting 'model.widht' of model=small_cnn; did you mean 'model.width'?",
    "run addon.feddecorr.beat=1 addons=[feddecorr]": "did you mean 'addon.feddecorr.beta'?",
    "run algorithm.mu=0.1": "unknown setting 'algorithm.mu' of algorithm=fedavg; it is a setting of algorithm=",
    "run algorithm=fedprox algorithm.mu 0.1": "cannot read the setting 'algorithm.mu'; did you mean algorithm.mu=0.1?",
    "run protocol.rounds 2": "cannot read the setting 'protocol.rounds'; did you mean protocol.rounds=2?",
    "run -m plugins=a.py,b.py": "takes one value for all cells; write 'plugins=[a.py,b.py]'",
    "run board=digits protocol.round=3": "board digits: unknown setting 'protocol.round'",
    "list fedprox": "cannot list 'fedprox'; write: fedspan list methods fedprox",
    "list femnist": "cannot list 'femnist'; write: fedspan list datasets femnist",
    "list boards digits": "'digits' has no details to list; 'fedspan plan board=digits' counts its cells",
    "list protocols digits": "'fedspan run --cfg job protocol=digits' shows its settings",
    "list algorithm": "cannot list 'algorithm'; did you mean 'algorithms'?",
    "new algorithms fedx": "cannot make a new 'algorithms'; did you mean 'algorithm'?",
    "new algorithm fedavg": "algorithm 'fedavg' already exists",
    "new algorithm FedX": "'FedX' must be lower case letters, digits and _",
    "new algorithm fedx": "run this in a checkout of FedSpan",
    "new algorithm": "write: fedspan new algorithm|addon|dataset|partition|fleet|model|board NAME [--package DIR]",
    "new board digits": "board 'digits' already exists: ",
    "new board runs": "'runs' is a folder of the site, so no board; choose another name",
    "new algorithm null": "'null' is read as None in a setting or in a board; choose another name",
    "new algorithm on": "'on' is read as True in a setting or in a board; choose another name",
    "test": "write: fedspan test NAME [plugins=FILE.py]",
    "test fedprx": "unknown plugin 'fedprx'; did you mean 'fedprox'?",
    # settings that a command does not take
    "validate board=nonexistent": "all records of a folder are taken, so 'board' cannot be set; known: paths.results,",
    "validate scale=small": "records of a folder are taken, so 'scale' cannot be set; known: paths.results, plugins",
    "validate path.results=x": "unknown setting 'path.results'; did you mean 'paths.results'?",
    "sync board=nonexistent": "all records of a folder are taken, so 'board' cannot be set; known: paths.pages,",
    "sync --from there workers=2": "all records of a folder are taken, so 'workers' cannot be set; known: paths.pages,",
    "test fedavg protocol.rounds=7": "the settings of their cells, so 'protocol.rounds' cannot be set; known: plug",
    "doctor board=digits": "doctor checks the machine, not a cell, so 'board' cannot be set; known: device,",
    "ui seed=3": "all pages and runs are served, so 'seed' cannot be set; known: paths.pages, paths.results, plugins",
    "data where seed=3": "one folder holds the data, so 'seed' cannot be set; known: paths.data, plugins",
    "data fetch mnist dataset=digits": "name the dataset by itself: fedspan data fetch NAME, without dataset=",
    "data fetch mnist seed=3": "manages the files of a dataset, so 'seed' cannot be set; known: dataset,",
    "list methods seed=3": "lists show every plugin as it is, so 'seed' cannot be set; known: plugins",
    "cite fedavg scale=small": "is of a plugin or of a whole board, so 'scale' cannot be set; known: board, plugins",
    "list methods --compat board=digits": "--compat takes one task, so 'board' cannot be set; name its dataset,",
    "list methods --compat --spaces": "--compat and --spaces are two lists; ask for one at a time",
    "report algoritm=fedavg": "unknown setting 'algoritm'; did you mean 'algorithm'?",
    "report tune.trial=2": "unknown setting 'tune.trial'; did you mean 'tune.trials'?",
    # values and types
    "run algorithm=fedprox algorithm.mu=much": "algorithm.mu must be a number, got 'much'",
    "run algorithm=fedprox algorithm.mu=-1": "algorithm.mu must not be negative, got -1.0",
    "run partition.alpha=0": "partition.alpha must be positive",
    "run -m partition.alpha=0.5,-1": "partition.alpha must be positive",
    "run partition.alpha=nan": "partition.alpha must be a finite number, got nan",
    "run seed=1.5": "seed must be a whole number, got 1.5",
    "run clients=0": "clients must be at least 1, got 0",
    "run participation=0": "participation must lie in (0, 1], got 0.0",
    "run protocol.rounds=0": "protocol.rounds must be at least 1, got 0",
    "run protocol.precision=fp8": "protocol.precision must be one of float32, bf16, float64, got 'fp8'",
    "run tracking=perhaps": "tracking must be true or false, got 'perhaps'",
    "run threads=0": "threads must be at least 1, got 0",
    "run checkpoint_seconds=-1": "checkpoint_seconds must not be negative, got -1.0",
    "run timeout=0": "timeout must be positive, got 0.0",
    "run -m workers=0": "workers must be at least 1, got 0",
    "run -m workers=two": "workers must be a whole number, got 'two'",
    "run -m workers=1,2": "workers says how to run, which takes one value",
    "verify sample=1,2": "sample takes one value here, got 1, 2",
    "submit board=digits sample=1,2": "sample takes one value here, got 1, 2",
    "plan seed=0,1 launcher=ray device=cuda": "device=cuda with launcher=ray needs gpus=, a cell's share of the GPUs",
    "plan board=digits launcher=submitit device=cuda:1": "device=cuda:1, but launcher=submitit gives each cell its GPU",
    "run -m launcher=ray device=cuda": "device=cuda with launcher=ray needs gpus=, a cell's share of the GPUs",
    "run device=meta": "device=meta is not a device to train on; use cpu, cuda or cuda:0",
    "run device=gpu": "device=gpu is not a device to train on; use cpu, cuda or cuda:0",
    "run device=cpu:0": "device=cpu:0 is not a device to train on; use cpu, cuda or cuda:0",
    "run protocol.factor=0.5": "protocol.factor is for protocol.schedule=multistep alone, got 0.5",
    "run dataset=image_folder": "dataset.root is not set",
    "run dataset=image_folder dataset.root=absent": "/absent does not exist; it must name train/",
    "plan workers=x": "workers must be a whole number, got 'x'",
    "ui --port x": "fedspan: ui: argument --port: invalid int value: 'x'",
    "ui --site-port 70000": "a port lies in 0..65535, got 70000",
    "report scale=huge": "unknown scale 'huge'; known: own, paper, small, smoke",
    "report scale=smoke": "no board has results at scale smoke; results: results",
    "completion": "fedspan: completion: the following arguments are required: shell; 'fedspan completion --help'",
    "tune seed=0": "fedspan: tune needs a board that tunes (board=digits_tuned)",
    "doctor device=nope": "device=nope is not a device to train on",
    "run launcher=jobli": "unknown launcher 'jobli'; did you mean 'joblib'?",
    "run epochs=3": "unknown setting 'epochs'; did you mean 'protocol.local_epochs'?",
    "run batch=32": "unknown setting 'batch'; did you mean 'protocol.batch_size'?",
    "run mu=0.1": "unknown setting 'mu'; it is a setting of algorithm=",
    "run beta=0.1 addons=[feddecorr]": "unknown setting 'beta'; did you mean 'addon.feddecorr.beta'?",
    "run beat=0.1 addons=false": "unknown setting 'beat'",
    "run ridge=0.1": "unknown setting 'ridge'; it is a setting of addons=[",
    "run paths.results=": "results must be a path, got ''",
    "run -m seed=0,": "write several values without spaces, and none after the last comma: seed=a,b",
    "run algorithm=fedavg,": "write several values without spaces, and none after the last comma: algorithm=a,b",
    "plan -m board=digits": "unknown option '-m'; only 'fedspan run' has it",
    "report --multirun board=digits": "unknown option '--multirun'; only 'fedspan run' has it",
    "list methods CCVR": "did you mean 'ccvr'?",
    "cite SCAFFOLD": "cannot cite 'SCAFFOLD'; did you mean 'scaffold'?",
    "freeze digits": "there is no leaderboards/boards here; run 'fedspan freeze' in a checkout",
    "run lr=0.1": "unknown setting 'lr'; did you mean 'protocol.lr'?",
    "run protocol.round=5": "unknown setting 'protocol.round'; did you mean 'protocol.rounds'?",
    "run protocol.epochs=5": "unknown setting 'protocol.epochs'; did you mean 'protocol.local_epochs'?",
    "run path.results=foo": "unknown setting 'path.results'; did you mean 'paths.results'?",
    "run tune.trials=3": "unknown setting 'tune.trials'; it is a setting of boards that tune (board=digits_tuned)",
    "run rounds=3": "unknown setting 'rounds'; did you mean 'protocol.rounds'?",
    "run mu=3 algorithm=fedprox": "unknown setting 'mu'; did you mean 'algorithm.mu'?",
    "run addon.nope=3": "unknown setting 'addon.nope'; known: ",
    # what no machine has and nobody waits for
    "run partition.alpha=1e-320": "partition.alpha must be 0 or at least 2.22507e-308 in size, got 1e-320",
    "plan protocol.batch_size=1000001": "protocol.batch_size must be at most 1,000,000, got 1000001",
    "run threads=100000": "threads must be at most 1,024, got 100000",
    "run -m workers=1000000": "workers must be at most 10,000, got 1000000",
    "run workers=2 threads=2": "train one cell with threads=1 only, not with threads=2: a worker uses one core",
    "run gpus=1": "gpus=1 is a cell's share of the GPUs, which needs launcher=ray or submitit",
    "run -m gpus=0.5 launcher=joblib": "gpus=0.5 is a cell's share of the GPUs, which needs launcher=ray or submitit",
    "run workers=2 launcher=submitit": "workers=2 train one cell on this machine only, not with launcher=submitit",
    "run launcher=submitit": "launcher=submitit makes a job of each cell of a grid; add -m, or leave it out",
    "run launcher=submitit_local workers=1": "launcher=submitit_local makes a job of each cell of a grid; add -m",
    "run launcher=ray gpus=1": "launcher=ray spreads one cell over workers; add workers=N, or -m for a grid",
    "run hydra.launcher.partition=gpu": "'hydra.launcher.partition=gpu' is for the launcher of a grid; add -m, or",
    "run hydraulic=3": "unknown setting 'hydraulic'",
    "run seed=0,1 hydra.verbose=true": "several values need -m: fedspan run -m seed=0,1 hydra.verbose=true",
    "run timeout=1e300": "timeout must be at most 1,000,000,000 seconds, got 1e+300",
    "run clients=1000000000": "clients must be at most 1,000,000, got 1000000000",
    "run protocol.rounds=1e30": "protocol.rounds must lie within ±9223372036854775807, got 1e+30",
    "run protocol.rounds=10000000": "protocol.rounds must be at most 1,000,000, got 10000000",
    "run protocol.local_epochs=1e5": "protocol.local_epochs must be at most 10,000, got 100000",
    "run -m seed=range(0,1000000000)": "at most 100,000 values can be swept",
    "run -m seed=range(0,9000) clients=range(1,9000)": "a grid of 80,991,000 cells is too large",
    # what cannot be together
    "run addon.feddecorr.beta=0.2": "no cell uses the add-on 'feddecorr'; add addons=[feddecorr]",
    "run -m addon.feddecorr.beta=0.2,0.3": "no cell uses the add-on 'feddecorr'; add addons=[feddecorr]",
    "run addons=feddecorr,ccvr": "; for all of them in one method write 'addons=[feddecorr,ccvr]'",
    "run seed=0 seed=1": "'seed' is given twice",
    # what cannot be read
    "run addons=[a,b": "cannot read the setting 'addons=[a,b'; write name=value",
    "run clients": "cannot read the setting 'clients'; write name=value",
    "show partition dirichlet": "cannot read the setting 'dirichlet'; did you mean partition=dirichlet?",
    "run feddecorr": "cannot read the setting 'feddecorr'; did you mean addons=[feddecorr]?",
    "run addons=[feddecorr, spherefed]": "write a list without spaces: addons=[a,b]",
    "run addons=[feddecorr, spherefed] seed=1": "write a list without spaces: addons=[a,b]",
    "run addons=[feddecorr seed=1 addons=[ccvr]": "write name=value, and quote lists: 'addons=[a,b]'",
    "plan board=/absent.yaml": "there is no board file /absent.yaml",
    "run -m board=cifar10_small": "dataset.source is not set; it must name train/<class>/*",
    "run fresh": "cannot read the setting 'fresh'; did you mean fresh=true?",
    "run fresh digits": "cannot read the setting 'fresh'; did you mean fresh=true?",
    "run tracking false": "cannot read the setting 'tracking'; did you mean tracking=false?",
    "run =3": "cannot read the setting '=3'; write name=value",
    "run algorithm fedprox": "cannot read the setting 'algorithm'; did you mean algorithm=fedprox?",
    "plan digits": "cannot read the setting 'digits'; did you mean board=digits?",
    "run +new=1": "settings cannot be added, deleted or moved",
    "run ~seed": "settings cannot be added, deleted or moved",
    "run -m seed=glob(*)": "only lists of values and range(...) can be swept",
    "run -m partition.alpha=interval(0,1)": "only lists of values and range(...) can be swept",
    "run dataset={name:digits}": "set the settings one by one, as dataset.field=value",
    "run addon.babu=3": "'addon.babu' has no settings",
    "run addon=3": "'addon' holds several settings; set them one by one, as addon.",
    "run paths=elsewhere": "'paths' holds several settings; set them one by one",
    "sync --form results": "unknown option '--form'; did you mean '--from'?",
    "sync --from=": "sync: --from has an empty value; 'fedspan sync --help' has the details",
    "show partition --out=": "show: --out has an empty value",
    "sync": "there is no folder results; name another with paths.results=DIR",
    "sync paths.results=reslts": "there is no folder reslts; name another with paths.results=DIR",
    "report paths.results=reslts": "there is no folder reslts; name another with paths.results=DIR",
    "retry --failed paths.results=reslts": "there is no folder reslts; name another with paths.results=DIR",
    "run --wrokers=3": "unknown option '--wrokers=3'; settings are written name=value",
}


@pytest.mark.parametrize(("command", "message"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_runs(fedspan, here, command, message):
    ran = fedspan(*command.split())
    assert ran.status == 2
    assert message in ran.complaint
    assert ran.complaint.startswith("fedspan: ")
    assert ran.out == ""
    assert list(here.iterdir()) == []


def test_a_plan_without_its_images_says_so_before_it_times_anything(fedspan, here):
    ran = fedspan("plan", "board=cifar10_small")
    assert ran.status == 2
    assert ran.complaint.startswith("fedspan: dataset.source is not set; it must name train/<class>/*")


BOARDS = {
    "grid: [{seed: [}]": "board.yaml line 1 is not valid YAML",
    "- a list": "board.yaml must be a mapping",
    'title: "x\\e[2J"': r"board.yaml: the text 'x\x1b[2J' must not have control characters",
    'title: "x\\ud800"': r"board.yaml: the text 'x\ud800' must not have control characters",
    "title: \0": "board.yaml is not valid YAML: unacceptable character #x0000",
    "base: {paths.results: elsewhere}": "'paths.results' says where to write files; set it on the command line",
    "gird: []": "board.yaml: unknown field 'gird'; did you mean 'grid'?",
    "grid: {seed: 0}": "board.yaml: grid must be a list",
    "grid: [seed]": "board.yaml: grid[0] must be a mapping, got 'seed'",
    "grid: [{seed: []}]": "board.yaml: seed must be a whole number, got []",
    "grid: [{sed: [0, 1]}]": "board.yaml: unknown setting 'sed'; did you mean 'seed'?",
    "base: {protocol: {rounds: 1}}": "'protocol' holds several settings; write them with dots, as protocol.rounds: ...",
    "grid: [{seed: 0, executor: [loop, vmap]}]": "its cells differ in 'executor', which says how to run",
    "base: {plugins: [a.py, b.py]}": "takes one value for all of them; write a list of files as [[a.py, b.py]]",
    "base: {algorithm: fedprx}": "board.yaml: unknown algorithm 'fedprx'; did you mean 'fedprox'?",
    "base: {1: 2}": "board.yaml: unknown setting '1'",
    "base: {addon.feddecorr.beta: 1}": "board.yaml: 'addon.feddecorr.beta' has no effect",
    "scales: {smal: {seed: 1}}": "board.yaml: unknown scale 'smal'; did you mean 'small'?",
    "tables: [{row: [method]}]": "board.yaml: tables[0].row'; did you mean",
    "figures: [{kind: pie}]": "board.yaml: figures[0].kind must be one of accuracy, accuracy_over_time, spectrum,",
    "tables: nice": "board.yaml: tables must be a list of mappings",
    "title: &a [*a]": "board.yaml: line 1 repeats *a, which is not complete there",
    "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else ['x'] * 9)}]" for n in range(9)): "values",
    "base: " + "[" * 40 + "]" * 40: "board.yaml: line 1 is nested more than 30 deep",
}


def test_an_endless_number_is_one_short_line(fedspan):
    complaint = fedspan("plan", f"seed={'9' * 5000}").complaint
    assert complaint.startswith("fedspan: cannot read the setting 'seed=999")
    assert len(complaint) < 400


@pytest.mark.parametrize("command", ["run", "plan", "report"])
@pytest.mark.parametrize(("text", "message"), BOARDS.items(), ids=[text[:40] for text in BOARDS])
def test_a_mistake_in_a_board_names_the_file_and_the_place(fedspan, here, command, text, message):
    (here / "board.yaml").write_text(text)
    ran = fedspan(command, "board=board.yaml")
    assert ran.status == 2
    assert message in ran.complaint
    assert [path.name for path in here.iterdir()] == ["board.yaml"]


METHODS = "grid: [{algorithm: [fedavg, fedprox], addons: [[], [feddecorr]]}]\n"
UNFILLED = {
    "tables: [{metric: accuracy}]": "table 1: metric 'accuracy' must be written stage.metric",
    "tables: [{metric: traned.accuracy}]": "metric 'traned.accuracy' has an unknown stage; did you mean 'trained'?",
    "tables: [{}, {metric: trained.acuracy}]": "table 2: no record has the metric 'trained.acuracy'; did you",
    "tables: [{metric: trained.domain_acuracy.*}]": "did you mean 'trained.domain_accuracy.*'?",
    "tables: [{rows: [metod]}]": "table 1: unknown axis 'metod'; did you mean 'method'?",
    "tables: [{columns: [protocol.round]}]": "table 1: unknown axis 'protocol.round'; did you mean 'protocol.rounds'?",
    "tables: [{where: {algoritm: fedavg}}]": "table 1: where: unknown axis 'algoritm'; did you mean 'algorithm'?",
    "tables: [{where: {algorithm: [fedavg, fedprx]}}]": "algorithm=fedprx selects no cell; did you mean 'fedprox'?",
    "tables: [{minus: {method: fedprx}}]": "table 1: minus: method=fedprx selects no cell; did you mean 'fedprox'?",
    "tables: [{minus: {dataset: digits}}]": "table 1: minus: 'dataset' is not an axis of the table; known: addons,",
    "figures: [{kind: sweep, x: protocol.round}]": "figure 1: unknown axis 'protocol.round'; did you mean",
    "figures: [{kind: bars, metric: cost.byte}]": "figure 1: no record has the metric 'cost.byte'; did you",
}


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(("text", "message"), UNFILLED.items(), ids=[text[:40] for text in UNFILLED])
def test_a_table_that_no_record_can_fill_is_refused_before_training(fedspan, here, command, text, message):
    (here / "board.yaml").write_text(METHODS + text)
    ran = fedspan(command, "board=board.yaml")
    assert ran.status == 2
    assert ran.complaint.startswith("fedspan: board board.yaml: ")
    assert message in ran.complaint
    assert [path.name for path in here.iterdir()] == ["board.yaml"]


def test_a_board_of_which_only_a_part_is_planned_keeps_the_tables_of_the_whole(fedspan, here):
    (here / "board.yaml").write_text(METHODS + "tables: [{where: {algorithm: fedprox}, minus: {addons: none}}]")
    assert fedspan("plan", "board=board.yaml", *QUICK, "algorithm=fedavg").out.startswith("2 cells")


@pytest.mark.parametrize("name", ["..", "methods", "runs", "sweep", "a b", "-x"])
def test_a_board_whose_page_would_take_the_place_of_another_is_refused(fedspan, here, name):
    (here / f"{name}.yaml").write_text("title: x")
    for command in ("plan", "report"):
        ran = fedspan(command, f"board='{name}.yaml'")
        assert ran.status == 2
        assert f"{name}.yaml: a board is named by letters, digits, _ and -, and not methods, datasets" in ran.complaint


def test_a_board_by_path_cannot_take_the_page_of_another(fedspan, here):
    (here / "digits.yaml").write_text("grid: [{seed: [7]}]")
    for command in ("plan", "run -m", "report"):
        ran = fedspan(*command.split(), "board=digits.yaml")
        assert ran.status == 2
        assert "digits.yaml: this board would replace the page of board 'digits'; rename the file" in ran.err


def test_a_board_by_path_is_compared_with_boards_that_are_links_to_themselves(fedspan, here):
    boards = here / "leaderboards" / "boards"
    boards.mkdir(parents=True)
    (boards / "mine.yaml").symlink_to("mine.yaml")
    (here / "mine.yaml").write_text("grid: [{seed: [7]}]")
    ran = fedspan("plan", "board=mine.yaml")
    assert ran.status == 2
    assert "mine.yaml: this board would replace the page of board 'mine'" in ran.complaint


def test_a_board_s_file_beside_is_told_where_its_name_alone_was_given(fedspan, here):
    (here / "mine.yaml").write_text("grid: [{seed: [7]}]")
    assert "unknown board 'mine'; did you mean mine.yaml?" in fedspan("plan", "board=mine").complaint


def test_a_board_of_any_size_or_kind_of_file_is_answered(fedspan, here):
    (here / "large.yaml").write_text("title: x" + " " * 2**20)
    assert "large.yaml: it has 1048584 bytes, more than 1048576" in fedspan("plan", "board=large.yaml").complaint
    os.mkfifo(here / "pipe.yaml")
    assert "there is no board file pipe.yaml" in fedspan("plan", "board=pipe.yaml").complaint


def test_a_protocol_that_cannot_be_read_stops_only_who_asks_for_it(fedspan, here, caplog):
    (here / "leaderboards" / "protocols").mkdir(parents=True)
    (here / "leaderboards" / "protocols" / "bad.yaml").write_text("rounds: [")
    assert fedspan("run", "--cfg", "job").status == 0
    assert "bad.yaml line 1 is not valid YAML" in fedspan("plan", "protocol=bad").complaint


def test_pieces_that_extend_each_other_without_end_are_refused(fedspan, here):
    (here / "leaderboards" / "pieces").mkdir(parents=True)
    for number in range(40):
        text = f"extends: [p{number + 1}, p{number + 1}]\nbase: {{clients: 3}}" if number < 39 else "base: {clients: 3}"
        (here / "leaderboards" / "pieces" / f"p{number}.yaml").write_text(text)
    (here / "board.yaml").write_text("extends: p0")
    assert "pieces nest more than 5 deep" in fedspan("plan", "board=board.yaml").complaint


def test_a_scale_that_the_board_lacks_is_refused(fedspan, here):
    (here / "board.yaml").write_text("base: {seed: 0}\nscales: {small: {protocol.rounds: 1}}")
    assert "board 'board' declares no scale 'smoke'; it has own, small" in fedspan(
        "plan", "board=board.yaml", "scale=smoke"
    ).complaint  # fmt: skip


# boards that reproduce something printed -------------------------------------------------------------------

PRINTED = {
    "printed: [my_paper/figure_1]": "board 'board': my_paper/figure_1 has no settings in hyperparameters.csv",
    "tables: [{printed: [feddecorr_tpami/8]}]": "board 'board': no cell has what feddecorr_tpami, Table 8 prints: ",
    "printed: [feddecorr_tpami/8]": "clients=2 has no source: no paper states it, and no line says where it comes from",
}


@pytest.mark.parametrize(("text", "message"), PRINTED.items(), ids=PRINTED)
def test_plan_says_in_a_line_each_what_a_board_lacks_of_what_it_reproduces(fedspan, here, text, message):
    (here / "board.yaml").write_text(f"base: {{clients: 2, dataset.limit: 60, partition: iid}}\n{text}\n")
    ran = fedspan("plan", "board=board.yaml", *QUICK)
    assert (ran.status, ran.out.splitlines()[0]) == (0, "1 cell: 0 done, 1 missing")
    assert any(message in line for line in ran.err.splitlines() if line.startswith("fedspan: "))


def test_a_recipe_line_without_source_is_one_line(fedspan, here):
    shutil.copytree(ROOT / "results" / "paper", here / "results" / "paper")
    mine = here / "results" / "paper" / "recipes" / "mine.yaml"
    mine.write_text("boards: [digits]\nlines: [{set: {clients: 10}}]\n")
    ran = fedspan("plan", "board=digits")
    assert ran.status == 2
    assert "mine.yaml: lines[0] (clients) has no source: name a paper with its section" in ran.complaint


# what only shows with the data at hand: the cell is refused before it trains, with its reason kept ---------------

IMPOSSIBLE = {
    "clients=61 partition=iid": "clients=61 is more than the 60 training images; lower clients, or raise dataset.limit",
    "clients=3 partition.min_size=21": "lower partition.min_size or clients",
    "clients=6 partition.alpha=0.01 partition.balanced=false": "lower min_size or clients, or raise alpha",
    "clients=2 diagnostics.spectra=true diagnostics.clients=[2]": "diagnostics.clients names client 2",
    "clients=2 diagnostics.spaces=true": "diagnostics.spaces needs a model whose layers are linear and without bias",
    "clients=2 model.width=100000": "choose a smaller small_cnn(width=100000, features=4)",
    "clients=2 model.width=30000000000": "no memory holds small_cnn(width=30000000000, features=4)",
}
SMALL = tuple(word for word in QUICK if not word.startswith(("clients", "partition")))


@pytest.mark.parametrize(("words", "message"), IMPOSSIBLE.items(), ids=IMPOSSIBLE)
def test_an_impossible_cell_is_refused_in_one_line_that_says_what_to_change(fedspan, here, words, message):
    small = [word for word in SMALL if word.split("=")[0] not in words]
    ran = fedspan("run", *small, "checkpoint_seconds=0", *words.split())
    assert ran.status == 2
    assert message in ran.complaint
    [failure] = failures()
    assert message in failure["reason"]
    assert "traceback" not in failure
    assert records() == {}
    assert not (here / "results/checkpoints").exists(), "nothing was trained"


def test_contradictory_components_are_named_and_the_cell_is_skipped(fedspan):
    ran = fedspan("run", *QUICK, "addons=[feddecorr,feddecorr]")
    assert ran.status == 1
    assert "skipped: 'feddecorr' appears twice in fedavg + feddecorr + feddecorr" in ran.complaint
    [record] = records().values()
    assert (record["status"], record["scores"]) == ("skipped", {})


# folders and files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["run", "run -m workers=1"])
def test_results_that_cannot_be_written_are_refused_before_training(fedspan, here, mode):
    (here / "taken").write_text("a file, where a folder should be")
    ran = fedspan(*mode.split(), *QUICK, "paths.results=taken")
    assert ran.status == 2
    assert "cannot write taken" in ran.complaint
    assert "paths.results" in ran.complaint
    assert (here / "taken").read_text() == "a file, where a folder should be"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_results_folder_is_refused_before_training(fedspan, here):
    (here / "results").mkdir(mode=0o500)
    assert "cannot write results" in fedspan("run", *QUICK).complaint


def test_a_disk_that_is_full_ends_the_grid_in_one_line(fedspan, monkeypatch):
    real = os.fsync
    written = []

    def full(handle):
        written.append(handle)
        if len(written) > 9:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    ran = fedspan("run", "-m", *QUICK, *ONE, "seed=0,1,2")
    assert ran.status == 2
    *warnings, complaint = " ".join(ran.err.split()).split("fedspan: ")
    assert "No space left on device; free space, or choose another folder with paths.results" in complaint
    assert all("no checkpoint after round" in warning for warning in warnings if warning)
    assert len(records()) in (1, 2)
    monkeypatch.undo()


def damage(path):
    path.write_text(path.read_text().replace('"accuracy"', '"acuracy"', 1))


@pytest.mark.parametrize("harm", [damage, lambda path: path.write_bytes(b"\xff{"), lambda path: path.write_text("")])
def test_a_damaged_record_is_named_set_aside_and_computed_again(fedspan, harm):
    command = ("run", "-m", *QUICK, *ONE, "seed=0,1")
    fedspan(*command)
    before = records()
    harm(path := Path("results/records", f"{min(before)}.json"))
    harmed = path.read_bytes()
    ran = fedspan(*command)
    assert ran.status == 0
    message = " ".join(ran.err.split())
    assert str(path) in message.replace("- ", "-")
    assert "is damaged" in message
    assert "2 cells: 1 with a record, 1 to run" in ran.out
    assert records() == before
    assert Path("results/set_aside", f"{path.name}.1").read_bytes() == harmed


def test_a_damaged_checkpoint_is_named_set_aside_and_the_cell_starts_again(fedspan):
    fedspan("run", *QUICK)
    before = records()
    shutil.rmtree("results")
    [key] = before
    Path("results/checkpoints").mkdir(parents=True)
    Path("results/checkpoints", f"{key}.safetensors").write_bytes(b"nothing that we wrote")
    ran = fedspan("run", *QUICK)
    assert ran.status == 0
    assert "is damaged" in ran.err
    assert records() == before
    assert Path("results/set_aside", f"{key}.safetensors.1").read_bytes() == b"nothing that we wrote"


# a plugin under development ---------------------------------------------------------------------------


BROKEN = {
    "absent": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (PATH, line 1)"),
    "misspelt": ("x = 1\nx = = 2", "SyntaxError: invalid syntax (PATH, line 2)"),
    "raises": ("\n1 / 0", "ZeroDivisionError: division by zero (PATH, line 2)"),
}


@pytest.mark.slow
def test_a_broken_file_of_the_checkout_is_one_line_with_its_place_and_stops_nothing(fedspan, here, monkeypatch):
    registry.discover()  # the plugins that are right
    package = here / "methods_with_mistakes"
    package.mkdir()
    (package / "__init__.py").touch()
    expected = {}
    for name, (source, message) in BROKEN.items():
        (package / f"{name}.py").write_text(source)
        place = str(package / f"{name}.py")
        expected[name] = f"{package.name}.{name} cannot be imported: {message.replace('PATH', place)}"
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(registry, "PLUGIN_PACKAGES", (package.name,))
    monkeypatch.setattr(registry, "_discovered", False)
    monkeypatch.setattr(registry, "_broken", [])
    complaints = [f"fedspan: {line}" for line in expected.values()]
    ran = fedspan("list", "algorithms")
    assert (ran.status, sorted(ran.err.splitlines())) == (0, complaints)
    assert "fedavg" in ran.out
    ran = fedspan("run", *QUICK, "algorithm=fedavg")
    assert (ran.status, sorted(ran.err.splitlines())) == (0, complaints)
    said = "".join(found for good, _, found in _checks(resolve({})) if not good)
    for name, line in expected.items():
        ran = fedspan("run", *QUICK, f"algorithm={name}")
        assert ran.status == 2
        assert ran.err.splitlines()[-1] == f"fedspan: unknown algorithm '{name}' ({line})"
        assert line in said
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]
