import json
import shlex

import pytest
import yaml
from hydra import initialize
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given
from hypothesis import strategies as st

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec import board, compose, overrides, presets, settings
from fedspan.benchmark.spec.cell import key_of
from fedspan.benchmark.spec.plan import plan


def cell(**overrides):
    return compose.make_cell(compose.resolve({key.replace("__", "."): value for key, value in overrides.items()}))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cleints": 3}, "unknown setting 'cleints'; did you mean 'clients'"),
        ({"algorithm.muu": 1}, "unknown setting 'algorithm.muu' of algorithm=fedavg"),
        ({"algorithm": "fedprox", "algorithm.muu": 1}, "of algorithm=fedprox; did you mean 'algorithm.mu'"),
        ({"addon.feddecor.beta": 1}, "unknown setting 'addon.feddecor.beta'; did you mean 'addon.feddecorr.beta'"),
        ({"addon.feddecorr.bet": 1}, "did you mean 'addon.feddecorr.beta'"),
        ({"protocol.epochs": 1}, "unknown setting 'protocol.epochs'; did you mean 'protocol.local_epochs'"),
        ({"protocol.round": 1}, "unknown setting 'protocol.round'; did you mean 'protocol.rounds'"),
        ({"path.results": "x"}, "unknown setting 'path.results'; did you mean 'paths.results'"),
        ({"tune.trials": 3}, "unknown setting 'tune.trials'; it is a setting of boards that tune"),
        ({"model": "ResNet"}, "unknown model 'ResNet'; did you mean 'resnet"),
        ({"addons": ["FedDecorr"]}, "unknown addon 'FedDecorr'; did you mean 'feddecorr'"),
        ({"paths.result": "x"}, "did you mean 'paths.results'"),
        ({"seed.deep": 1}, "unknown setting 'seed.deep'; 'seed' is a setting itself"),
        ({"addons.feddecorr.beta": 1}, "unknown setting 'addons.feddecorr.beta'; did you mean 'addon.feddecorr.beta'?"),
        ({"algorithm": "fedprx"}, "unknown algorithm 'fedprx'; did you mean 'fedprox'"),
        ({"algorithm": 3}, "unknown algorithm '3'"),
        ({"algorithm": None}, "unknown algorithm 'None'"),
        ({"protocol": "digit"}, "unknown protocol 'digit'; did you mean 'digits'"),
        ({"addons": ["feddecor"]}, "unknown addon 'feddecor'; did you mean 'feddecorr'"),
        ({"algorithm.name": "fedprox"}, "'algorithm.name' cannot be set; choose with algorithm="),
        ({"paths": "x"}, "'paths' holds several settings; set them one by one"),
        ({"addon.feddecorr": {"beta": 1}}, "as addon.feddecorr.form="),
        ({"diagnostics": True}, "'diagnostics' holds several settings"),
        ({"clients": "ten"}, "clients must be a whole number, got 'ten'"),
        ({"clients": float("inf")}, "clients must be a whole number, got inf"),
        ({"participation": float("nan")}, "participation must be a finite number, got nan"),
        ({"participation": 0}, r"participation must lie in \(0, 1\], got 0"),
        ({"participation": 1.5}, r"participation must lie in \(0, 1\], got 1.5"),
        ({"partition.alpha": 0}, "partition.alpha must be positive .*got 0"),
        ({"partition.alpha": "x"}, "partition.alpha must be a number, got 'x'"),
        ({"protocol.precision": "fp8"}, "protocol.precision must be one of float32, bf16, float64, got 'fp8'"),
        ({"addons": None}, "addons must be a list, got None"),
        ({"scale": "smal"}, "unknown scale 'smal'; did you mean 'small'"),
        ({"diagnostics.clients": 3}, "diagnostics.clients must be a list, got 3"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(overrides, message):
    with pytest.raises(UserError, match=message) as error:
        compose.make_cell(compose.resolve(overrides))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"threads": "many"}, "threads must be a whole number"),
        ({"tracking": "yes"}, "tracking must be true or false"),
        ({"device": 3.5, "checkpoint_seconds": "x"}, "checkpoint_seconds must be a number"),
    ],
    ids=str,
)
def test_mistakes_in_where_and_how_are_named_too(overrides, message):
    with pytest.raises(UserError, match=message):
        settings.How.of(compose.resolve(overrides))


def test_numbers_that_are_written_differently_are_the_same_cell():
    assert cell(participation=1).key == cell(participation=1.0).key == cell().key
    assert cell(partition__alpha=1).key == cell(partition__alpha=1.0).key
    assert cell(clients=10.0).key == cell().key


def test_one_add_on_needs_no_brackets():
    assert cell(addons="feddecorr").key == cell(addons=["feddecorr"]).key


def test_fields_of_an_add_on_reach_it():
    made = cell(addons=["feddecorr"], addon__feddecorr__form="paper", addon__feddecorr__beta=0.2)
    assert (made.addons[0].form, made.addons[0].beta) == ("paper", 0.2)


def test_a_preset_of_the_protocol_can_be_changed_field_by_field():
    made = cell(protocol="feddecorr_cifar10", protocol__rounds=7).protocol
    assert (made.rounds, made.batch_size, made.augment) == (7, 64, "crop_flip")


def test_resolving_twice_shares_nothing():
    first = compose.resolve({})
    first["addon"]["feddecorr"]["beta"] = 99
    first["addons"].append("x")
    first["paths"]["results"] = "x"
    assert compose.resolve({})["addon"]["feddecorr"]["beta"] != 99
    assert compose.resolve({})["addons"] == []
    assert compose.resolve({})["paths"]["results"] != "x"


GRID = board.product(
    {
        "model": ["linear_net", "small_cnn"],
        "algorithm": [{"algorithm": name, "algorithm.mu": mu} for name in ("fedprox", "moon") for mu in (1, 1.0, 0.5)],
        "fleet": [{}, {"fleet": "stragglers"}, {"fleet": "stragglers", "fleet.share": 0.25}],
        "addons": [[], "feddecorr", ["feddecorr", "spherefed"]],
        "unseen": [0, 0.2],
        "more": [{}, {"diagnostics.spectra": True}, {"dataset.limit": 500, "protocol.rounds": 3, "seed": 4}],
    }
)


def test_a_cell_of_a_grid_is_the_cell_that_its_settings_make_alone():
    """What cells of a grid share, they share without a trace."""
    planned = {one.cell.key: one for one in plan(GRID)}
    for point in GRID[::7]:
        alone = cell(**point)
        together = planned[alone.key]
        assert (together.config, together.cell) == (compose.resolve(point), alone)
        assert (together.cell.what, together.cell.settings) == (alone.what, alone.settings)


def test_the_key_of_a_cell_is_that_of_its_settings():
    """It is put together from the texts of its parts, which cells of a grid share."""
    for one in plan(GRID):
        assert one.cell.key == key_of(json.loads(json.dumps(one.cell.what)))


# text ---------------------------------------------------------------------------------------------

floats = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), floats,
    st.text("a1é\\'\"[]{},=:$ ", max_size=6),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12),
)  # fmt: skip


@given(st.one_of(scalars, st.lists(scalars, max_size=3)))
def test_an_override_reads_back_as_it_was_written(value):
    (override,) = overrides.parse([overrides.override_text("addons", value)])
    read = overrides.plain_value(override.value())
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["clients", "addons=[a", "x={a"])
def test_text_that_is_no_override_is_told_how_to_write_one(text):
    with pytest.raises(UserError, match=r"cannot read the setting .*write name=value") as error:
        overrides.parse([text])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["~/photos", "/tmp/müller", "/tmp/photos (2024)", "/tmp/x&y", "/tmp/a=b", "b=c,"])
def test_a_value_that_needs_quotes_is_shown_with_them(value):
    with pytest.raises(UserError, match="cannot read the setting") as error:
        overrides.parse([f"dataset.root={value}"])
    [pasted] = shlex.split(str(error.value).partition("quote the value: ")[2])
    [override] = overrides.parse([pasted])
    assert overrides.plain_value(override.value()) == value


def test_yaml_that_cannot_be_read_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("a: 1\nb: [1,\nc: }")
    with pytest.raises(UserError, match=r"broken\.yaml line \d+ is not valid YAML"):
        presets.load_yaml(path)
    path.write_text("- a")
    with pytest.raises(UserError, match=r"broken\.yaml must be a mapping"):
        presets.load_yaml(path)
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match=r"broken\.yaml"):
        presets.load_yaml(path)
    with pytest.raises(UserError, match=r"cannot read .*absent"):
        presets.load_yaml(tmp_path / "absent.yaml")


def test_yaml_never_makes_objects(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("a: !!python/object/apply:os.getcwd []")
    with pytest.raises(UserError):
        presets.load_yaml(path)


def test_presets_in_the_working_folder_come_first(tmp_path, monkeypatch):
    folder = tmp_path / "leaderboards" / "protocols"
    folder.mkdir(parents=True)
    (folder / "digits.yaml").write_text(yaml.safe_dump({"rounds": 77}))
    (folder / "mine.yaml").write_text(yaml.safe_dump({"description": "short", "rounds": 3}))
    monkeypatch.chdir(tmp_path)
    assert cell(protocol="digits").protocol.rounds == 77
    assert cell(protocol="mine").protocol.rounds == 3
    (folder / "mine.yaml").write_text(yaml.safe_dump({"round": 3}))
    with pytest.raises(UserError, match=r"mine\.yaml.*round'; did you mean 'rounds'"):
        cell(protocol="mine")


def test_hydra_composes_a_preset_as_it_is_now(tmp_path, monkeypatch):
    """Also one that was composed before, was edited, and differs in nothing but the type of a number."""
    folder = tmp_path / "leaderboards" / "protocols"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for rate in (1, 1.0, 0.5):
        (folder / "mine.yaml").write_text(yaml.safe_dump({"lr": rate}))
        found = compose.by_hydra(["protocol=mine"]).protocol.lr
        assert (found, type(found)) == (rate, type(rate))


def test_hydra_of_the_caller_stays_as_it_was():
    """A notebook may have initialised it, and a Hydra application may call `fedspan.run`."""
    with initialize(version_base="1.3", config_path=None):
        before = GlobalHydra.instance().hydra
        assert compose.by_hydra(["protocol.rounds=7"]).protocol.rounds == 7
        with pytest.raises(UserError):
            compose.by_hydra(["no_such_setting=7"])
        assert GlobalHydra.instance().hydra is before


def test_the_command_of_a_cell_names_no_place_and_no_habit_of_one_machine():
    words = ["dataset=cifar10", "dataset.source=/home/me/photos.tar", "dataset.root=/data", "dataset.limit=50"]
    words += ["paths.results=/tmp/r", "workers=2", "board=digits", "seed=1"]
    assert overrides.command_of(words) == "fedspan run dataset=cifar10 dataset.limit=50 seed=1"
