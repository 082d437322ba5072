"""The command `fedspan`. Torch and its dependents load only when a command runs, so help and typos answer fast."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedspan import __version__
from fedspan.benchmark import numerics
from fedspan.benchmark.cli.arguments import Parser
from fedspan.benchmark.errors import UserError, did_you_mean, plain
from fedspan.benchmark.patience import doing
from fedspan.benchmark.running.signals import Stopped

SETTINGS = "name=value"
EXAMPLES = """\
examples:
  fedspan run algorithm=fedprox algorithm.mu=0.01 'addons=[feddecorr]' partition.alpha=0.1
  fedspan run -m board=digits workers=2
  fedspan run -m algorithm=fedavg,fedprox seed=0,1,2
  fedspan plan board=digits
  fedspan report board=digits

'fedspan COMMAND --help' has the details.
"""


@dataclass(frozen=True)
class Command:
    """A command: one-line `about`, `details` shown below its usage, and its function ``module:name``."""

    about: str
    function: str
    arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None
    details: str = ""

    def run(self, arguments: argparse.Namespace) -> int:
        """Import the command's module and run it; return the exit status."""
        module, name = self.function.split(":")
        with doing("loading PyTorch and the plugins"):
            found = importlib.import_module(f"fedspan.benchmark.cli.{module}")
        function: Callable[[argparse.Namespace], int] = getattr(found, name)
        return function(arguments)


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("settings", nargs="*", metavar=SETTINGS)


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--multirun", action="store_true", help="run a grid: every combination of the values")
    parser.add_argument(
        "-c", "--cfg", choices=("job", "hydra", "all"), help="show the configuration of the cell instead of running it"
    )
    _settings(parser)


def _plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--costs", action="store_true", help="show costs computed from shapes, without data")
    _settings(parser)


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compat", action="store_true", help="show which add-on works on which algorithm")
    parser.add_argument("--spaces", action="store_true", help="show the search spaces of methods' settings")
    parser.add_argument("words", nargs="*", metavar="KIND | KIND NAME")


def _show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="the file of the figure: .svg, .pdf or .png")
    parser.add_argument("words", nargs="*", metavar="partition")


def _retry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--failed", action="store_true", help="retry the cells that failed")
    _settings(parser)


def _sync(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="place", metavar="DIR|MLFLOW", help="collect records made elsewhere")
    _settings(parser)


def _port(text: str) -> int:
    """Return a port number; 0 lets the system choose."""
    if not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"a port lies in 0..65535, got {text}")
    return int(text)


_port.__name__ = "int"  # the type that argparse names in its error


def _ui(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, default=5000, help="MLflow's port (5000)")
    parser.add_argument("--site-port", type=_port, default=8000, help="the site's port (8000)")
    _settings(parser)


def _new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--package", metavar="DIR", help="write a distribution of its own into this folder")
    parser.add_argument("words", nargs="*", metavar="algorithm|addon|dataset|partition|fleet|model|board NAME")


def _words(metavar: str) -> Callable[[argparse.ArgumentParser], object]:
    return lambda parser: parser.add_argument("words", nargs="*", metavar=metavar)


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


COMMANDS = {
    "run": Command(
        "train one cell, or with -m or board=NAME a grid",
        "run:run",
        _run,
        "Cells with a record are skipped; interrupted cells resume. fresh=true recomputes cells whose records other "
        "sources made and moves the old records to results/set_aside.",
    ),
    "tune": Command(
        "tune the methods of a board: run its trials, choose among them",
        "run:tune",
        _settings,
        "For boards that declare it (tune:). Each method has the same number of trials on each task, the first with "
        "its defaults; the highest accuracy on validation images wins. Trials are cells: they resume, and several "
        "machines share them. tune.trials=N and the like change how a board tunes. 'fedspan run board=NAME' does the "
        "same, then reports default and tuned methods on seeds that no trial has seen. 'fedspan plan board=NAME' "
        "estimates the cost.",
    ),
    "retry": Command(
        "retry cells that failed or ran out of memory or time",
        "run:retry",
        _retry,
        "Finds such cells in the results folder (paths.results), whatever their board or command. Settings may change "
        "how they run (timeout=, device=, executor=, workers=, ...), not what they compute. Diverged cells keep their "
        "records, because a repetition diverges again.",
    ),
    "list": Command(
        "list plugins, protocols and boards, with papers and settings",
        "lists:show",
        _list,
        "Without KIND, names only. KIND is one or more of datasets, partitions, fleets, models, algorithms, addons, "
        "methods (algorithms and addons), protocols, boards. 'fedspan list methods fedprox' tells all about one: "
        "settings, what is tuned, papers with links. 'fedspan list methods --spaces [NAME ...]' shows the search "
        "spaces of methods' settings with their sources. 'fedspan list methods --compat [name=value ...]' shows "
        "which add-on works on which algorithm, and why the others do not, for the default cell or that of the "
        "settings.",
    ),
    "plan": Command(
        "count cells done and missing, and estimate the cost of the rest",
        "plan:show",
        _plan,
        "Estimates use records of similar cells, or else short timing runs on this machine. For boards that "
        "reproduce a paper, plan also names settings without a source, settings that differ from the paper without a "
        "reason, and printed numbers without a cell. --costs shows parameters, traffic, compute and memory of each "
        "method at the scale of the papers, computed from shapes without data or training.",
    ),
    "report": Command(
        "make tables, figures and pages of a board, a sweep, or all boards with results",
        "report:show",
        _settings,
        "board=NAME renders one board; other settings, such as seed=0,1, render that run or sweep in pages/ of "
        "paths.results; without either, every board at each scale with results. The overview, the comparison and the "
        "pages of methods and datasets follow. Exits with status 2 if it leaves out an unusable file.",
    ),
    "show": Command(
        "draw the number of images of each class at each client",
        "show:show",
        _show,
        "'fedspan show partition [name=value ...]' takes the settings of 'fedspan run'. It writes a figure and "
        "prints the same numbers as bars.",
    ),
    "sync": Command(
        "mirror records and boards to MLflow, or collect records made elsewhere",
        "exchange:sync",
        _sync,
        "The MLflow store is MLFLOW_TRACKING_URI, by default an SQLite file in the results folder. Boards are mirrored "
        "from the pages that 'fedspan report' makes: one experiment per board and scale, one run per row of its "
        "tables. --from collects records from a folder, with their verifications, or from an MLflow store. Each record "
        "is checked; one that contradicts a local record is refused by name. Exits with 1 then, or without MLflow.",
    ),
    "validate": Command(
        "check records, by default those of paths.results",
        "exchange:validate",
        _words("FILE|FOLDER"),
        "Checks the schema, the recomputed key, digests, completeness, impossible values, and that each task has one "
        "data digest. Reports how many records were repeated (see 'fedspan verify') and which were made by other or by "
        "uncommitted sources. Exits with status 1 if it refuses a record or a verification; the file stays in place. "
        "plugins= names the files of plugins that the records need.",
    ),
    "verify": Command(
        "recompute records on this machine and compare them bit for bit",
        "verify:show",
        _words("KEY | board=NAME | sample=N"),
        "KEY may be a prefix of a key; settings such as scale=small choose among the records of a board. sample=N "
        "draws N of these, or of all records, by sample_seed=S, or by a seed that it draws and prints. Each cell is "
        "recomputed from the start in a scratch folder (in TMPDIR), by default with the device, executor, threads and "
        "numerics of its record. workers= sets how many cells run at a time; paths.data= and dataset.source= locate "
        "the data.\n\n"
        "Outcomes are kept in paths.results under verifications/. Exit status: 0 if all are identical, 1 if some "
        "differ, 2 if some could not be computed.",
    ),
    "submit": Command(
        "check the new records of a board and commit them to a branch",
        "submission:submit",
        _settings,
        "Validates the records of board=NAME that are not published yet, repeats sample=N of them (2), says what they "
        "change in the ranking, and commits them with a description to the branch submit/NAME. The working tree stays "
        "as it is. paths.results=DIR names the folder of the records.",
    ),
    "review": Command(
        "check the records of a branch",
        "submission:review",
        _words("BRANCH | board=NAME | sample=N"),
        "Validates the records that BRANCH adds, repeats sample=N of them (3) drawn at random, and says what they "
        "change in the ranking. The branch is not checked out, and none of its code runs. Exit status as of verify.",
    ),
    "freeze": Command(
        "write the next frozen version of a board",
        "freeze:make",
        _words("NAME"),
        "Writes leaderboards/frozen/NAME-vN.yaml. It keeps its address and its cells, whatever becomes of the board.",
    ),
    "cite": Command(
        "print BibTeX of FedSpan, of plugins, or of all papers behind a board",
        "cite:show",
        _words("NAME | board=NAME | all"),
        "Without NAME, FedSpan alone. NAME is that of a method, dataset, partition or model.",
    ),
    "ui": Command(
        "serve the site and MLflow, on loopback only",
        "ui:show",
        _ui,
        "The site consists of the pages from 'fedspan report' (paths.pages); MLflow shows the runs and one experiment "
        "per board.",
    ),
    "data": Command(
        "fetch, verify and locate the files of the datasets",
        "data:manage",
        _words("fetch NAME | verify NAME | where"),
        "fetch   download the missing files of datasets; resume partial downloads\n"
        "verify  re-read all files of datasets, compare their checksums, and load them\n"
        "where   print the data root and its datasets\n\n"
        "Settings such as dataset.root=DIR and paths.data=DIR may follow.",
    ),
    "doctor": Command(
        "check versions, devices, plugins, data, results folder and tracking",
        "doctor:show",
        _settings,
        "Exits with status 1 if something needs attention.",
    ),
    "new": Command(
        "write a working plugin and its test, or a board",
        "new:make",
        _new,
        "Writes into the checkout in the working folder. With --package DIR it writes a distribution into DIR, "
        "wherever that is: it runs at once (plugins=FILE) and installs with pip install DIR.",
    ),
    "test": Command(
        "run the contract tests of a plugin",
        "test:run",
        _words("NAME [plugins=FILE.py]"),
        "The tests hold every plugin to the promises of the interface: hooks change no input and draw no global random "
        "numbers, runs resume bit for bit, neutral settings change nothing, executors agree. NAME may come from this "
        "package, an installed distribution, or a file (plugins=FILE.py). Needs pytest. Exits with 1 if one fails.",
    ),
    "completion": Command(
        "print the completion script of a shell",
        "completion:show",
        _completion,
        "Put 'eval \"$(fedspan completion bash)\"' into ~/.bashrc, or the equivalent for your shell.",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    1: a cell failed, or the requested cell is impossible; 2: the user must correct something; 130: interrupted;
    143: ended by SIGTERM.
    """
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv), from_shell=argv is None)
    except UserError as error:
        return fail(str(error))
    except Stopped:
        return fail("terminated; run the same command again to resume", 128 + signal.SIGTERM)
    except KeyboardInterrupt:
        return fail("interrupted; run the same command again to resume", 130)
    except BrokenPipeError:  # the reader closed the pipe, as in: fedspan list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # such as a failing disk, without further details
        return fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except Exception as error:
        from fedspan.benchmark.contract import blame

        if (broken := blame(error)) is None:
            raise
        return fail(broken)


def _dispatch(arguments: list[str], from_shell: bool) -> int:
    if "_ARGCOMPLETE" in os.environ:
        from fedspan.benchmark.cli.completion import complete

        complete(COMMANDS)
    if not arguments:
        raise UserError(f"name a command: {', '.join(COMMANDS)}; 'fedspan --help' explains them")
    name, words = arguments[0], arguments[1:]
    if name in ("-h", "--help", "help"):
        print(_help(), end="")
        return 0
    if name == "--version":
        print(f"fedspan {__version__}")
        return 0
    if name not in COMMANDS:
        raise UserError(f"unknown command '{name}'{did_you_mean(name, COMMANDS)}")
    command = COMMANDS[name]
    parser = parser_of(name)
    if {"-h", "--help"} & set(words):
        print(parser.format_help(), end="")
        if name == "run":
            from fedspan.benchmark.cli.choices import choices_text

            print(choices_text(), end="")
        return 0
    if from_shell and (named := [mode for mode in numerics.MODES if f"numerics={mode}" in words]):
        numerics.switch(named[0])  # before torch is loaded, so the command need not restart
    parsed = parser.read(words)
    parsed.command, parsed.from_shell = name, from_shell
    _log_to_terminal()
    return command.run(parsed)


def _help() -> str:
    listed = "\n".join(f"  {name:11} {command.about}" for name, command in COMMANDS.items())
    about = "Benchmark federated learning methods on heterogeneous clients."
    return f"usage: fedspan COMMAND [ARGUMENT ...]\n\n{about}\n\ncommands:\n{listed}\n\n{EXAMPLES}"


def parser_of(name: str) -> Parser:
    """Return the parser of a command's own arguments."""
    command = COMMANDS[name]
    paragraphs = [f"{command.about[0].upper()}{command.about[1:]}.", *command.details.split("\n\n")]
    parser = Parser(
        prog=f"fedspan {name}",
        description="\n\n".join(text if "\n" in text else textwrap.fill(text, 79) for text in paragraphs if text),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.arguments(parser)
    return parser


def tell(message: str) -> None:
    """Print one line to standard error."""
    print(f"fedspan: {plain(message)}", file=sys.stderr)


def fail(message: str, status: int = 2) -> int:
    """Print one line to standard error; return the exit status."""
    tell(message)
    return status


def _log_to_terminal() -> None:
    import logging

    from rich.console import Console
    from rich.logging import RichHandler

    class Plain(logging.Formatter):
        """Messages with names of files, which may hold anything."""

        def format(self, record: logging.LogRecord) -> str:
            return plain(super().format(record))

    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False, markup=False)
    handler.setFormatter(Plain("%(message)s"))
    logger = logging.getLogger("fedspan")
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
