"""The pages of the site that are made from classes and papers, and the check of the built site."""

import importlib.util
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedspan.benchmark.bibliography import papers_of
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.notebook.frames import COLUMNS
from fedspan.benchmark.registry import all_plugins, plugins
from fedspan.benchmark.spec.overrides import axes_of
from fedspan.benchmark.spec.plan import plan_grid

DOCS = Path(__file__).resolve().parents[2] / "docs"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site, check = loaded("site"), loaded("check_site")


@pytest.mark.parametrize("plugin", list(all_plugins()), ids=lambda plugin: f"{plugin.kind}:{plugin.name}")
def test_the_page_of_a_plugin_has_its_title_settings_and_links_to_its_papers(plugin):
    page = site.plugin_page(plugin)
    assert page.startswith(f"# {plugin.title}\n")
    assert all(f"({paper.link})" in page for paper in papers_of(plugin))
    assert all(f".{field}` |" in page for field in defaults_of(plugin))
    assert "``" not in page.replace("```", "").partition("## Settings")[2], "an empty default is a word"
    assert f"fedspan cite {plugin.name}" in page


@pytest.mark.parametrize("kind", [kind for _, kinds in site.FOLDERS.values() for kind in kinds])
def test_the_command_on_the_page_of_a_plugin_lacks_nothing_but_the_folder_of_its_images(kind):
    for plugin in plugins(kind).values():
        words = shlex.split(site.choice_of(plugin))
        given = [word for word in words if not word.endswith("=FOLDER")]
        with nullcontext() if given == words else pytest.raises(UserError, match="is not set; it must name"):
            plan_grid(axes_of(given))
        assert f"fedspan run {site.choice_of(plugin)}\n" in site.plugin_page(plugin)


def test_every_plugin_is_on_an_index_page():
    pages = "".join(site.index_page(title, "", kinds) for title, kinds in site.FOLDERS.values())
    assert all(f"]({site.file_of(plugin)})" in pages for plugin in all_plugins())


def test_a_list_in_a_docstring_is_a_list_on_the_page():
    class Listed:
        """Somebody 2024: first line.

        With these:
        - one;
        - two
          goes on.
        """

    assert "With these:\n\n- one;\n- two\n" in site.text_of(Listed)


def test_a_section_of_readme_is_a_page_whose_links_stay_inside_the_site():
    readme = "# T\n\n## Use\n\nSee [how](docs/a.md#b), [all](#there), [a tour](examples/t.ipynb).\n\n### Next\n\nno\n"
    assert site.section_page(readme, "Run", "Use") == "# Run\n\nSee [how](a.md#b), all, a tour.\n\n"
    with pytest.raises(ValueError, match="no section 'Cite'"):
        site.section_page(readme, "Cite", "Cite")


def test_what_a_page_says_to_readers_on_github_is_not_on_the_site():
    page = (DOCS / "index.md").read_text()
    assert "(../README.md)" in page
    built = site.on_page_markdown(page, page=None, config=None, files=None)
    assert "README" not in built
    assert built.startswith("# FedSpan\n\n")
    assert "Which federated learning method wins" in built


def test_every_section_that_the_site_takes_from_readme_is_there():
    readme = site.README.read_text(encoding="utf-8")
    for title, heading in site.SECTIONS.values():
        assert len(site.section_page(readme, title, heading).splitlines()) > 10


def test_the_page_about_python_explains_every_column():
    page = (DOCS / "python.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `")] == [
        f"| `{name}` | {kind} | {about} |" for name, (kind, about) in COLUMNS.items()
    ]


@pytest.fixture
def built(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text('<h1 id="top">x</h1><a href="../page.html#here">up</a>')
    (tmp_path / "page.html").write_text('<p id="here"></p><a href="folder/">f</a><a href="#here">h</a>')
    return tmp_path


def test_a_site_whose_links_lead_somewhere_has_no_problem(built):
    assert list(check.problems(built)) == []


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ('<a href="https://example.org">', None),
        ('<link rel="canonical" href="https://a.b/">', None),
        ('<a href="none.html">', "page.html: none.html: there is no such file"),
        ('<a href="folder/index.html#none">', "page.html: folder/index.html#none: there is no such anchor"),
        ('<a href="../secret.html">', "page.html: ../secret.html: it leaves the site"),
        ('<script src="https://cdn.example/x.js">', "page.html: loads https://cdn.example/x.js from outside"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "page.html: loads //cdn.example/x.css from outside"),
        ('<img src="none.png">', "page.html: none.png: there is no such file"),
    ],
)
def test_what_is_wrong_with_a_page_is_named_and_a_link_to_elsewhere_is_not(built, element, problem):
    (built / "page.html").write_text(f'<p id="here"></p>{element}')
    assert list(check.problems(built)) == ([problem] if problem else [])


@pytest.mark.parametrize(
    "source", ["url('https://fonts.example/x.css')", '"https://fonts.example/x.css"', "url(//x.y)"]
)
def test_a_style_sheet_that_loads_from_outside_is_named(built, source):
    (built / "style.css").write_text(f"@import {source};")
    assert list(check.problems(built)) == ["style.css: loads from outside"]


def test_code_in_the_site_is_named(built):
    (built / "__pycache__").mkdir()
    (built / "__pycache__" / "site.cpython-311.pyc").touch()
    assert list(check.problems(built)) == ["__pycache__/site.cpython-311.pyc: code, which mkdocs.yml should exclude"]
