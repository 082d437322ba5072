"""Each plugin names its papers, each paper has an address, and the file is BibTeX that others can read."""

import re

import pytest

from fedspan.benchmark import bibliography
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.places import packaged
from fedspan.benchmark.registry import all_plugins
from tests.toys import toy

TEXT = packaged(bibliography.FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize("plugin", list(all_plugins()), ids=lambda plugin: f"{plugin.kind}:{plugin.name}")
def test_every_plugin_names_papers_that_are_in_the_bibliography(plugin):
    assert vars(plugin).get("papers"), "papers that it does not inherit"
    assert all(paper.bibtex for paper in bibliography.papers_of(plugin))


@pytest.mark.parametrize("paper", list(bibliography.papers().values()), ids=lambda paper: paper.key)
def test_every_entry_is_complete_and_leads_somewhere(paper):
    assert paper.title
    assert all(paper.authors)
    assert re.fullmatch(r"(19|20)\d\d", paper.year)
    if paper.key != bibliography.SUITE:
        assert paper.venue
        assert re.fullmatch(r"https?://[^\s{}]+", paper.link)
        assert not paper.arxiv or re.fullmatch(r"\d{4}\.\d{4,5}", paper.arxiv)
        assert not paper.doi or re.fullmatch(r"10\.\d{4,}/\S+", paper.doi)


def test_nothing_of_the_file_is_overlooked():
    assert len(bibliography.papers()) == len(re.findall(r"^@", TEXT, re.MULTILINE))
    read = "\n\n".join(paper.bibtex for paper in bibliography.papers().values())
    assert TEXT.rstrip().endswith(read)
    fields = re.findall(r"^  .*$", TEXT, re.MULTILINE)
    assert len(fields) == len(bibliography.FIELD.findall(TEXT))


def test_no_entry_is_there_twice_or_for_nobody():
    papers = bibliography.papers().values()
    assert len({paper.title for paper in papers}) == len(papers)
    named = {key for plugin in all_plugins() for key in plugin.papers}
    assert set(bibliography.papers()) - named == {bibliography.SUITE}


@pytest.mark.parametrize(
    ("authors", "short"),
    [("One, A.", "One 2020"), ("One, A. and Two, B.", "One and Two 2020"), ("A, A and B, B and C, C", "A et al. 2020")],
)
def test_a_text_cites_three_authors_or_more_as_et_al(authors, short):
    entry = f"@misc{{key,\n  author = {{{authors}}},\n  title = {{T}},\n  year = {{2020}},\n}}\n"
    assert bibliography.read(entry)["key"].short == short


def test_a_text_without_authors_is_cited_by_its_title():
    entry = "@misc{key,\n  title = {The Title},\n  year = {2020},\n}\n"
    assert bibliography.read(entry)["key"].short == "The Title"


@pytest.mark.parametrize(
    ("key", "link"),
    [
        ("arXiv:2001.01523", "https://arxiv.org/abs/2001.01523"),
        ("doi:10.1109/5.726791", "https://doi.org/10.1109/5.726791"),
        ("https://example.org/paper.pdf", "https://example.org/paper.pdf"),
    ],
)
def test_plugins_of_others_name_papers_by_their_address(key, link):
    assert [paper.link for paper in bibliography.papers_of(plugin_with(key))] == [link]


def test_an_unknown_key_is_one_line_with_the_nearest():
    with pytest.raises(UserError, match=r"'mine' cites 'mcmahan2007', .*; did you mean 'mcmahan2017'"):
        bibliography.citable(plugin_with("mcmahan2007"))
    with pytest.raises(UserError, match="mcmahan2007"):
        bibliography.cited([plugin_with("mcmahan2007")])


def test_an_unknown_key_stands_for_itself_on_pages():
    [paper] = bibliography.papers_of(plugin_with("mcmahan2007"))
    assert (paper.short, paper.link) == ("mcmahan2007", "")


def test_papers_of_several_plugins_come_once_and_in_the_order_of_the_file():
    plugins = list(all_plugins())
    keys = [paper.key for paper in bibliography.cited([*reversed(plugins), plugin_with("arXiv:2001.01523"), *plugins])]
    order = list(bibliography.papers())
    assert keys[:-1] == [key for key in order if key in keys]
    assert keys[-1] == "arXiv:2001.01523"
    assert len(set(keys)) == len(keys)


def plugin_with(key):
    base = next(plugin for plugin in all_plugins() if plugin.kind == "algorithm")
    return toy("algorithm", "mine")(type("Mine", (base,), {"__doc__": "Me 2024.", "papers": (key,)}))
