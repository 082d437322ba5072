"""MkDocs hooks: a page for every plugin, index pages, and pages made from sections of README."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedspan.benchmark.bibliography import papers_of
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.names import summary_of
from fedspan.benchmark.registry import Plugin, plugins, prefix_of
from fedspan.benchmark.report.axes import text
from fedspan.benchmark.search import describe_settings
from fedspan.benchmark.spec.plan import plan_grid

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

FOLDERS = {
    "methods": ("Methods", {"algorithm": "Algorithms", "addon": "Add-ons"}),
    "datasets": ("Datasets", {"dataset": "Datasets", "partition": "Partitions", "fleet": "Fleets", "model": "Models"}),
}
ABOUT = {
    "methods": "A method is one algorithm and any add-ons. "
    "[Reading the rows](../methods.md) explains what to expect of them.",
    "datasets": "A task is a dataset, a partition of its images, a number of clients and their fleet. "
    "Models are listed here too.",
}


ON_GITHUB = re.compile(r"<!-- on GitHub -->.*?<!-- until here -->\n", re.DOTALL)
README = Path(__file__).resolve().parents[1] / "README.md"
# Pages made from a section of README: title, and heading of the section.
SECTIONS = {
    "run.md": ("Run", "Use"),
    "settings.md": ("Settings", "Settings"),
    "records.md": ("Records", "What a record holds"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for folder, (title, kinds) in FOLDERS.items():
        files.append(File.generated(config, f"{folder}/index.md", content=index_page(title, ABOUT[folder], kinds)))
        for kind in kinds:
            for plugin in plugins(kind).values():
                path = f"{folder}/{file_of(plugin)}"
                files.append(File.generated(config, path, content=plugin_page(plugin)))
    text = README.read_text(encoding="utf-8")
    for name, (title, heading) in SECTIONS.items():
        files.append(File.generated(config, name, content=section_page(text, title, heading)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page without the parts for readers on GitHub, where generated pages do not exist."""
    return ON_GITHUB.sub("", markdown)


def section_page(readme: str, title: str, heading: str) -> str:
    """Return a section of README, up to its next heading, as a page; links outside docs/ become plain text."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", readme, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"README has no section '{heading}'")

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        return f"[{words}]({target.removeprefix('docs/')})" if target.startswith("docs/") else words

    return f"# {title}\n" + re.sub(r"(?<!!)\[([^\]`]+)\]\(([^)\s]+)\)", link, found[1])


def file_of(plugin: type[Plugin]) -> str:
    """Return the file name of a plugin's page; plugin names are unique only within a kind."""
    return f"{plugin.kind}-{plugin.name}.md"


def index_page(title: str, about: str, kinds: dict[str, str]) -> str:
    """Return the page that lists the plugins of some kinds with their papers."""
    lines = [f"# {title}", "", about, ""]
    for kind, heading in kinds.items():
        lines += [f"## {heading}", "", f"| {kind} | what it is | papers |", "|---|---|---|"]
        for plugin in plugins(kind).values():
            papers = ", ".join(f"[{paper.short}]({paper.link})" for paper in papers_of(plugin))
            lines.append(f"| [{plugin.title or plugin.name}]({file_of(plugin)}) | {summary_of(plugin)} | {papers} |")
        lines.append("")
    return "\n".join(lines)


def plugin_page(plugin: type[Plugin]) -> str:
    """Return the page of a plugin: description, commands, settings and papers."""
    commands = ["```sh", f"fedspan run {choice_of(plugin)}", f"fedspan cite {plugin.name}", "```"]
    lines = [f"# {plugin.title or plugin.name}", "", summary_of(plugin), "", *commands, "", text_of(plugin), ""]
    if rows := list(_settings(plugin)):
        head = "| setting | values | default | tuned over | source or reason |"
        lines += ["## Settings", "", head, "|---|---|---|---|---|"]
        lines += [f"| {' | '.join(map(_escaped, row))} |" for row in rows]
    if papers := papers_of(plugin):
        lines += ["", "## Papers", ""]
        lines += [f"* {paper.short}. [{paper.title}]({paper.link}). {paper.venue}" for paper in papers]
    return "\n".join(lines) + "\n"


def choice_of(plugin: type[Plugin]) -> str:
    """Return the words after `fedspan run` that choose a plugin, with the folder of images that some datasets need."""
    if plugin.kind == "addon":
        return f"'addons=[{plugin.name}]'"
    try:
        plan_grid({plugin.kind: [plugin.name]})
    except UserError as error:
        setting, unset, _ = str(error).partition(" is not set; ")
        if not unset:
            raise
        return f"{plugin.kind}={plugin.name} {setting}=FOLDER"
    return f"{plugin.kind}={plugin.name}"


def text_of(plugin: type[Plugin]) -> str:
    """Return a docstring as Markdown, with the empty line that it needs before a list."""
    text = inspect.cleandoc(plugin.__doc__ or "")
    return re.sub(r"^(?![-* ])(.+)\n(?=[-*] )", r"\1\n\n", text, flags=re.MULTILINE)


def _settings(plugin: type[Plugin]) -> Iterator[Sequence[str]]:
    for one in describe_settings(plugin, prefix_of(plugin)):
        default = f"`{shown}`" if (shown := text(one.default)) else "empty"
        yield f"`{one.name}`", one.values, default, one.space, one.about


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
