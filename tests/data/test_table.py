"""Tables by site: read from CSV files, split, and only then filled in and standardised, each site by its own rows."""

import math

import pytest
import torch

from fedbeyond.data.check.picture import draw
from fedbeyond.data.datasets._heart import heart
from fedbeyond.data.datasets._table import complete, table
from fedbeyond.data.partition.assignment import build_splits, select_rows
from fedbeyond.data.partition.splits import Rules, divide
from fedbeyond.errors import ConfigError, DataError, MissingError
from fedbeyond.experiment import registry, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.experiment.plan import plan

CSV = """site,age,smokes,marker,id,sick
north,40,yes,1.5,a1,no
north,?,no,NA,a2,yes
south,60,,2.5,a3,no
south,20,maybe,0.5,a4,yes
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text(CSV)
    return path


def close(a, b):
    torch.testing.assert_close(a, torch.tensor(b), equal_nan=True)


def test_numbers_and_categories_of_one_file_by_its_column_of_sites(file):
    found = table(str(file), label="sick", site="site", drop=("id",))
    assert found.classes == ("no", "yes") and list(found.images) == ["north", "south"]
    rows, labels = found.images["north"]
    nan = math.nan
    close(rows, [[40.0, 0.0, 0.0, 1.0, 1.5], [nan, 0.0, 1.0, 0.0, nan]])  # age; smokes: maybe, no, yes; marker
    assert labels.tolist() == [0, 1]
    close(found.images["south"][0][0], [60.0, nan, nan, nan, 2.5])


def test_a_file_a_site_without_a_header_separated_by_semicolons(tmp_path):
    (tmp_path / "v.east.data").write_text("1;2.0;0\n3;1;1\n\n")
    (tmp_path / "v.west.data").write_text("5;01;1.0\n")
    spelled = f"table(path='{tmp_path}/v.*.data', columns=['x', 'kind', 'y'], label=y, categorical=['kind'])"
    found = registry.make_one("datasets", spelled)
    assert list(found.images) == ["east", "west"] and found.classes == ("0", "1")
    close(found.images["east"][0], [[1.0, 0.0, 1.0], [3.0, 1.0, 0.0]])  # 2.0 and 2, 1 and 01 are the same
    close(found.images["west"][0], [[5.0, 1.0, 0.0]])


def test_a_field_in_quotes_may_hold_commas_and_several_lines(tmp_path):
    text = 'site,note,ill\nn,"pain,\nsince May",1\ns,"none\u2028left",0\n'
    (tmp_path / "visits.csv").write_text(text, "utf-8")
    found = table(str(tmp_path / "visits.csv"), label="ill", site="site")
    assert {site: x.tolist() for site, (x, _) in found.images.items()} == {"n": [[0.0, 1.0]], "s": [[1.0, 0.0]]}


def test_what_is_missing_is_filled_in_from_the_training_rows():
    nan, y = math.nan, torch.zeros(1)
    seen = torch.tensor([[1.0, 1.0, 0.0, nan], [2.0, 0.0, 1.0, nan], [nan, 0.0, 1.0, nan], [9.0, nan, nan, nan]])
    rows = torch.tensor([[nan, nan, nan, 5.0], [4.0, 1.0, 0.0, nan]])
    done = complete((0, 2, 0), (rows, y), (seen, y))[0]
    mean, spread = 14 / 4, ((2.5**2 + 1.5**2 * 2 + 5.5**2) / 4) ** 0.5  # of 1, 2, 9 and their median, 2
    close(done, [[(2 - mean) / spread, 0.0, 1.0, 0.0], [(4 - mean) / spread, 1.0, 0.0, 0.0]])


def test_a_column_that_never_changes_becomes_zeros_not_infinite():
    seen = (torch.full((3, 1), 7.1), torch.zeros(3))
    close(complete((0,), seen, seen)[0], [[0.0]] * 3)


def sites(tmp_path, shift=0.0):
    """Three sites; values of the first are shifted."""
    rng = torch.Generator().manual_seed(0)
    lines = ["site,a,b,y"]
    for site in "nst":
        for _ in range(20):
            a = float(torch.randn((), generator=rng))
            lines.append(f"{site},{a * 3 + (shift if site == 'n' else 0)},{'u' if a < 0.3 else '?'},{int(a > 0)}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    return path


def test_each_site_uses_its_own_training_rows_and_the_unseen_site_its_own_rows(tmp_path):
    found = table(str(sites(tmp_path, shift=100.0)), label="y", site="site")
    held, unseen = build_splits(found, divide(found, "t", 0, Rules(validation=0.2)))
    for site in "ns":
        rows = held[site]["train"][0]
        assert abs(float(rows[:, 0].mean())) < 1e-5 and float(rows[:, 0].std(correction=0)) == pytest.approx(1)
        assert rows.isfinite().all() and held[site]["val"][0].isfinite().all()
    assert abs(float(held["n"]["val"][0][:, 0].mean())) < 2  # by the training rows: near zero, not at it
    assert float(held["n"]["val"][0][:, 0].mean()) != pytest.approx(0, abs=1e-4)
    assert abs(float(unseen["t"][0][:, 0].mean())) < 1e-5


def test_validation_rows_do_not_change_what_training_rows_become(tmp_path):
    found = table(str(sites(tmp_path)), label="y", site="site")
    divided = divide(found, "t", 0, Rules(validation=0.2))
    before = build_splits(found, divided)[0]["n"]
    rows = {"train": divided.clients["n"].train, "val": divided.clients["n"].val}
    raw = {kind: (x[:], y) for kind, (x, y) in ((kind, select_rows(found, some)) for kind, some in rows.items())}
    changed = raw["val"][0] * 1000, raw["val"][1]
    assert torch.equal(found.complete(raw["train"], raw["train"])[0], before["train"][0])
    assert not torch.equal(found.complete(changed, raw["train"])[0], before["val"][0])


def test_a_run_on_a_table_learns(tmp_path):
    data = f"table(path='{sites(tmp_path, shift=50.0)}', site=site, label=y)"
    train = Train(rounds=4, batch_size=4)
    for method in ("fedavg+ga", "fedadg(classify=1, align=1)"):
        config = Config(method=method, target="t", data=data, network="mlp(hidden=[8])", train=train)
        *_, last = runner.run(runner.prepare(config), tmp_path / method)
        assert last["scores"]["t"]["test"]["accuracy"] >= 0.8
    assert "mlp(hidden=[8]) with" in plan(config)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "fedavg+rc"}, "rc needs images"),
        ({"network": "convnet"}, "convnet needs images"),
        ({"train": Train(transform="ga")}, "train.transform ga needs images"),
    ],
)
def test_what_is_for_images_is_refused_before_training_and_in_a_plan(tmp_path, changed, message):
    data = f"table(path='{sites(tmp_path)}', site=site, label=y)"
    config = Config(**{"target": "t", "data": data, "network": "mlp"} | changed)
    for ask in (runner.prepare, plan):
        with pytest.raises(ConfigError, match=message):
            ask(config)


def test_a_table_has_no_picture(file, tmp_path):
    with pytest.raises(ConfigError, match=r"a table of .* features; data show is for images"):
        draw(table(str(file), label="sick", site="site"), tmp_path / "p.png")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (CSV, {"site": "hospital"}, r"no column 'hospital'; its columns are site, age"),
        (CSV, {"label": "ill"}, r"no column 'ill'"),
        (CSV, {"categorical": ("agee",)}, r"no column 'agee'"),
        (CSV, {"site": ""}, "no site column is given; name it"),
        (CSV + "east,1,2\n", {}, "line 6: 3 values for 6 columns"),
        (CSV + ",1,no,2,a5,no\n", {}, "line 6: no value in column 'site'"),
        (CSV + "east,1,no,2,a5,?\n", {}, "1 row without a value in the label column 'sick': line 6; add the labels"),
        (CSV + "a/b,1,no,2,a5,no\n", {}, "site name 'a/b' is not accepted"),
        (CSV.replace("yes\n", "no\n"), {}, "the label needs at least two classes"),
        ("", {}, "no rows"),
        (CSV.replace("marker", "age"), {}, "more than one column has the name 'age'"),
        (CSV + 'east,"' + "x" * 140_000, {}, r"cannot be read \(field larger than field limit"),
        ("site,sick\na,1\nb,0\n", {}, "no column except the label"),
        (CSV + "".join(f"east,1,no,2,b{i},no\n" for i in range(200)), {}, r"'id' has 204 different .* drop=\['id'\]"),
    ],
)
def test_a_table_that_cannot_be_read_is_told(tmp_path, text, options, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        table(str(path), **{"label": "sick", "site": "site"} | options)


def test_files_that_are_not_there_or_differ_are_told(tmp_path):
    with pytest.raises(DataError, match="table has path='' and label='' and needs both"):
        table()
    for path in (f"{tmp_path}/none.csv", f"{tmp_path}/*.none"):
        with pytest.raises(MissingError, match="no such file"):
            table(path, label="y", site="site")
    with pytest.raises(DataError, match=r"more than one \*; write one \*"):
        table(f"{tmp_path}/*/*.csv", label="y")
    (tmp_path / "a.csv").write_text("x,y\n1,0\n")
    (tmp_path / "b.csv").write_text("z,y\n1,1\n")
    with pytest.raises(DataError, match="only some files have the columns x, z"):
        table(f"{tmp_path}/*.csv", label="y")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        table(f"{tmp_path}/*.csv", label="y")


def test_heart_disease_by_hospital(tmp_path):
    (tmp_path / "processed.cleveland.data").write_text("63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n")
    (tmp_path / "processed.va.data").write_text("44,1,4,0,0,0,1,127,0,0,?,?,?,2\n55,0,1,?,260,0,0,127,0,0,?,?,?,1\n")
    found = heart(str(tmp_path))
    assert found.classes == ("no", "yes") and found.images["va"][1].tolist() == [1, 1]
    rows = found.images["va"][0]
    assert rows[0, 5:7].isnan().all()  # age, sex, cp; then pressure and cholesterol, of which zero was not measured
    held = found.complete(found.images["va"], found.images["va"])[0]
    assert held.isfinite().all() and held.shape[1] == rows.shape[1]
    with pytest.raises(MissingError, match=r"processed\.\*\.data: no such files"):
        heart(str(tmp_path / "none"))
