import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.report.axes import Axes, common_and_distinct, in_words, named, title
from tests.report.made import board, cells_of


@pytest.fixture(scope="module")
def digits():
    """Return the cells of a board like the default one: three partitions, two algorithms, three seeds."""
    two_forms = [{"addons": ["feddecorr"], "addon.feddecorr.form": form} for form in ("released", "paper")]
    task = [{"partition": "dirichlet", "partition.alpha": alpha} for alpha in (0.05, 0.5)] + [{"partition": "iid"}]
    grid = {"task": task, "algorithm": ["fedavg", "fedprox"], "add-ons": [{"addons": []}, *two_forms]}
    return cells_of(board(grid | {"seed": [0, 1, 2]}))


def labels(axis, *grids):
    return list(dict.fromkeys(Axes(cells_of(board(*grids))).labels(axis)))


@pytest.mark.parametrize(
    ("axis", "spec"),
    [
        ("method", lambda what: (what["algorithm"], what["addons"])),
        ("partition", lambda what: what["partition"]),
        ("algorithm", lambda what: what["algorithm"]),
        ("addons", lambda what: what["addons"]),
        ("protocol.rounds", lambda what: what["protocol"]["rounds"]),
        ("seed", lambda what: what["seed"]),
    ],
)
def test_two_cells_share_a_label_exactly_when_they_share_the_setting(digits, axis, spec):
    found = Axes(digits).labels(axis)
    for one, a in zip(digits, found, strict=True):
        for other, b in zip(digits, found, strict=True):
            assert (a == b) == (spec(one.cell.what) == spec(other.cell.what))


def test_cells_of_a_plan_are_alike_exactly_when_they_differ_in_nothing_but_the_seed():
    grid = {"clients": [5, 10], "participation": [0.5, 1.0], "scale": ["small", "smoke"], "unseen": [0.0, 0.2]}
    parts = {
        "dataset": ["digits", "mnist"], "partition": ["iid", "dirichlet"], "fleet": ["reliable", "dropout"],
        "model": ["linear_net", "small_cnn"], "algorithm": ["fedavg", "fedprox"], "addons": [[], ["feddecorr"]],
        "protocol.rounds": [2, 3], "diagnostics.spectra": [True, False],
    }  # fmt: skip
    alone = [{name: values} for name, values in (grid | parts).items()]
    cells = [planned.cell for planned in cells_of(board(*(one | {"seed": [0, 1]} for one in alone)))]
    settings = [{**cell.what, "seed": None} for cell in cells]
    for one, what in zip(cells, settings, strict=True):
        for other, others in zip(cells, settings, strict=True):
            assert (one.identity_without_seed == other.identity_without_seed) == (what == others)


def test_a_method_is_its_algorithm_and_addons_and_both_forms_show_when_both_are_there(digits):
    assert list(dict.fromkeys(Axes(digits).labels("method"))) == [
        "fedavg",
        "fedavg + feddecorr(form=released)",
        "fedavg + feddecorr(form=paper)",
        "fedprox",
        "fedprox + feddecorr(form=released)",
        "fedprox + feddecorr(form=paper)",
    ]


def test_a_setting_that_came_later_is_an_axis_like_any_other():
    both = {"algorithm": "fedavgm", "addons": [[]], "algorithm.statistics": [False, True]}
    assert labels("method", both) == ["fedavgm(statistics=false)", "fedavgm(statistics=true)"]
    assert labels("algorithm.statistics", both) == ["false", "true"]
    assert labels("method", both | {"algorithm.statistics": False}) == ["fedavgm"]


def test_a_field_shows_only_where_it_varies_or_is_not_the_default():
    assert labels("method", {"addons": [["feddecorr"]]}) == ["fedavg + feddecorr"]
    assert labels("method", {"addons": [["feddecorr"]], "addon.feddecorr.form": "paper"}) == [
        "fedavg + feddecorr(form=paper)"
    ]
    assert labels("partition", {"partition.alpha": [0.5]}) == ["dirichlet"]
    assert labels("partition", {"partition.alpha": [0.05, 0.5]}) == ["dirichlet(alpha=0.05)", "dirichlet(alpha=0.5)"]
    assert labels("partition", {"partition.balanced": [True, False]}) == [
        "dirichlet(balanced=true)",
        "dirichlet(balanced=false)",
    ]


def test_variation_counts_over_the_whole_board_not_over_one_subgrid():
    assert labels("partition", {"partition.alpha": 0.5}, {"partition.alpha": 0.1, "algorithm": "fedprox"}) == [
        "dirichlet(alpha=0.5)",
        "dirichlet(alpha=0.1)",
    ]


def test_a_protocol_is_its_preset_and_what_varies_within_it():
    assert labels("protocol", {"protocol": ["digits", "default"]}) == ["digits", "default"]
    assert labels("protocol", {"protocol.lr": [0.1, 0.2]}) == ["default(lr=0.1)", "default(lr=0.2)"]


def test_a_dotted_path_is_none_for_cells_that_lack_it():
    grid = {"partition": [{"partition": "dirichlet", "partition.alpha": 0.1}, {"partition": "iid"}]}
    assert labels("partition.alpha", grid) == ["0.1", "none"]
    decorr = {"addons": [{"addons": []}, {"addons": ["feddecorr"], "addon.feddecorr.beta": 0.3}]}
    assert labels("addon.feddecorr.beta", decorr) == ["none", "0.3"]
    assert labels("addons", decorr) == ["none", "feddecorr(beta=0.3)"]


def test_an_unknown_axis_is_named_with_what_was_meant(digits):
    with pytest.raises(UserError, match=r"unknown axis 'protocol.round'; did you mean 'protocol.rounds'\?"):
        Axes(digits).labels("protocol.round")


def test_a_number_is_named_by_its_axis_where_no_heading_does():
    assert named("clients", "10") == "clients=10"
    assert named("partition", "iid") == "iid"
    assert named("addons", "none") == "no add-ons"


def test_a_heading_says_what_a_setting_is():
    said = {
        "clients": "Clients",
        "addons": "Add-ons",
        "algorithm.mu": "Mu",
        "protocol.lr": "Learning rate",
        "algorithm.lr": "Server learning rate",
        "protocol.local_epochs": "Local epochs",
        "addon.feddecorr.beta": "FedDecorr beta",
    }
    assert {axis: title(axis) for axis in said} == said


@pytest.mark.parametrize(
    ("axis", "label", "said"),
    [
        ("protocol.lr", "0.1", "learning rate 0.1"),
        ("addon.feddecorr.beta", "none", "no FedDecorr beta"),
        ("clients", "10", "10 clients"),
        ("protocol.rounds", "1", "1 round"),
        ("protocol.local_epochs", "5", "5 local epochs"),
        ("method", "fedavg + feddecorr(form=paper)", "FedAvg + FedDecorr (paper form)"),
        ("fleet", "reliable", "Reliable clients"),
        ("addons", "none", "no add-ons"),
        ("tuning", "tuned", "tuned"),
    ],
)
def test_a_label_is_clear_without_its_axis(axis, label, said):
    assert in_words(axis, label) == said


def test_where_takes_labels_bare_names_and_lists(digits):
    axes = Axes(digits)
    assert sum(axes.matches("partition", "dirichlet")) == 36
    assert sum(axes.matches("partition", ["iid", "dirichlet(alpha=0.05)"])) == 36
    assert sum(axes.matches("addons", [])) == 18
    assert sum(axes.matches("seed", 1)) == 18


@pytest.mark.parametrize(
    ("tasks", "common", "own"),
    [
        (["CIFAR-10, IID, alpha 0.05", "CIFAR-10, IID, alpha 0.5"], "CIFAR-10, IID", ["alpha 0.05", "alpha 0.5"]),
        (["CIFAR-10, IID", "MNIST, IID, 50 clients"], "IID", ["CIFAR-10", "MNIST, 50 clients"]),
        (["CIFAR-10, IID", "CIFAR-10, IID, SENet"], "CIFAR-10, IID", ["CIFAR-10, IID", "SENet"]),
        (["CIFAR-10, IID"], "CIFAR-10, IID", ["CIFAR-10, IID"]),
        (["IID, Speeds (share 0.5, dropped)", "IID, Speeds (share 0.9, dropped)"], "IID",
         ["Speeds (share 0.5, dropped)", "Speeds (share 0.9, dropped)"]),
        ([], "", []),
    ],
)  # fmt: skip
def test_tasks_are_told_apart_by_what_they_do_not_share(tasks, common, own):
    assert common_and_distinct([*tasks, *tasks]) == (common, dict(zip(tasks, own, strict=True)))
