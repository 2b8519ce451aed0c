"""What each column of a table is, and what cannot be right: found, named by line and value, with what to do."""

import random
import sys

import pytest

from fedbeyond.cli import main
from fedbeyond.data.datasets._heart import heart
from fedbeyond.data.datasets._table import table
from fedbeyond.errors import DataError
from fedbeyond.experiment.config import load
from fedbeyond.export.export import export
from fedbeyond.export.predict import predict

HEADER = "hospital,age,smokes,state"
DATA = "table(path=visits.csv, site=hospital, label=state)"


def lines_of(rows, header=HEADER):
    return "\n".join([header, *map(",".join, rows)]) + "\n"


@pytest.fixture
def rows():
    """Ninety good rows: row n is in line n + 2."""
    rng = random.Random(0)
    return [
        [site, str(rng.randint(30, 80)), rng.choice(("yes", "no")), rng.choice(("ill", "well"))]
        for site in ("north", "south", "east")
        for _ in range(30)
    ]


@pytest.fixture
def refused(tmp_path, rows):
    """Return the message of a table in which some cells, by row and column, have other texts."""

    def read(cells, column="", values=None, **options):
        for (row, place), text in cells.items():
            rows[row][place] = text
        header = f"{HEADER},{column}" if column else HEADER
        for row, value in zip(rows, values or (), strict=False):
            row.append(value)
        path = tmp_path / "visits.csv"
        path.write_text(lines_of(rows, header))
        with pytest.raises(DataError) as error:
            table(str(path), **{"label": "state", "site": "hospital"} | options)
        return str(error.value).removeprefix(f"{path}: ")

    return read


def read(tmp_path, rows, header=HEADER, **options):
    (tmp_path / "visits.csv").write_text(lines_of(rows, header))
    return table(str(tmp_path / "visits.csv"), **{"label": "state", "site": "hospital"} | options)


def test_a_stray_text_among_numbers_is_refused_by_line_and_value_with_two_ways_out(refused, tmp_path, rows):
    told = refused({(5, 1): "6o"})
    assert told == (
        "column 'age' has numbers, and in 1 row of 90 something else: '6o' (line 7); fix these values, or give "
        "missing=['6o'] if that means a missing value, or categorical=['age'] if all values are categories"
    )
    found = read(tmp_path, rows, missing=("6o",))
    assert dict(found.columns)["age"] == () and found.images["north"][0][5, 0].isnan()
    found = read(tmp_path, rows, categorical=("age",))
    assert "6o" in dict(found.columns)["age"]


def test_numbers_that_are_not_finite_and_decimal_commas_are_refused_by_name(refused):
    told = refused({(0, 1): "inf", (1, 1): '"52,5"', (2, 1): "NaN", (3, 1): "-Infinity", (9, 1): "inf"})
    assert "in 5 rows of 90 something else: 'inf' (line 2, line 11), '52,5' (line 3), 'NaN' (line 4)" in told
    assert "a decimal has a point: 52.5, not 52,5" in told and "missing=['inf', 'NaN', '-Infinity']" in told


def test_a_column_with_decimal_commas_throughout_is_a_number(refused):
    told = refused({}, "marker", [f'"{n},5"' for n in range(90)])
    assert "column 'marker' has numbers, and in 90 rows of 90 something else: '0,5' (line 2)" in told
    assert "and 85 more" in told and "missing" not in told


def test_a_column_of_texts_in_which_some_are_numbers_is_categorical(tmp_path, rows):
    for row in rows:
        row.append(random.Random(str(row)).choice(("a", "b", "c", "4")))
    rows[0][4] = "nan"  # in a column of texts it means missing, as NA does
    assert dict(read(tmp_path, rows, f"{HEADER},kind").columns)["kind"] == ("4", "a", "b", "c")


def test_missing_texts_may_be_numbers_and_are_compared_as_categories_are(tmp_path, rows):
    rows[0][1], rows[1][1], rows[2][2] = "-9", "-9.0", "Unknown"
    data = "table(path=visits.csv, site=hospital, label=state, missing=[-9, unknown])"
    assert load(None, [f"data={data}"]).data == data.replace("unknown", "'unknown'")
    found = read(tmp_path, rows, missing=(-9, "unknown"))
    assert found.images["north"][0][:2, 0].isnan().all() and dict(found.columns)["smokes"] == ("no", "yes")


def test_a_configuration_without_the_new_option_has_the_spelling_and_identity_it_had():
    config = load(None, [f"data={DATA}", "target=north"])
    assert config.data == DATA and "missing" not in str(config.identity())


def test_labels_that_differ_only_in_case_are_refused_with_their_numbers(refused):
    told = refused({(20, 3): "ILL", (21, 3): "Ill "})
    assert "labels in column 'state' that differ only in upper and lower case or in blanks: 'ill' in " in told
    assert "'ILL' in 1 row (line 22), 'Ill' in 1 row (line 23); write one of them everywhere, as in 'ill'" in told


def test_rows_without_a_label_are_named(refused):
    told = refused({(row, 3): "NA" for row in range(40, 47)})
    assert "7 rows without a value in the label column 'state': line 42, line 43, line 44, line 45, line 46 and" in told


def test_a_label_with_many_fractions_is_regression_and_few_are_classes(refused, tmp_path, rows):
    told = refused({(row, 3): f"{row / 7:.3f}" for row in range(90)})
    assert "label 'state' has 90 different values in 90 rows, a quantity and not classes: '0.000' (line 2)" in told
    assert "a label names one of a few classes" in told and "regression is not supported" in told
    for row in rows:
        row[3] = random.Random(str(row)).choice(("0.5", "1", "1.50"))
    assert read(tmp_path, rows).classes == ("0.5", "1", "1.5")


def test_a_label_that_is_an_identifier_is_refused_and_one_with_many_numbers_is_a_note(refused, tmp_path, rows):
    assert "hardly any class twice" in refused({(row, 3): f"P{row}" for row in range(90)})
    for number, row in enumerate(rows):
        row[3] = str(number % 30)
    assert "note: label 'state' has 30 different values in 90 rows" in read(tmp_path, rows).about[-2]


def test_a_class_of_one_row_is_a_note(tmp_path, rows):
    rows[7][3] = "wel"
    text = " ".join(" ".join(read(tmp_path, rows).about).split())
    assert "note: classes with one row: 1 of 3 classes of 'state': 'wel' (line 9); correct the label" in text


@pytest.mark.parametrize("day", ["2024-03-{:02}", "{:02}.03.2024", "3/{}/24", "2024-03-{:02}T10:30:00Z", "{} Mar 2024"])
def test_dates_are_recognised_and_refused_unless_they_are_meant_as_categories(refused, tmp_path, rows, day):
    told = refused({}, "admitted", [day.format(n % 28 + 1) for n in range(90)])
    assert "column 'admitted' holds dates, which are not numbers: " in told and "drop=['admitted']" in told
    found = read(tmp_path, rows, f"{HEADER},admitted", categorical=("admitted",))
    assert len(dict(found.columns)["admitted"]) == 28


@pytest.mark.parametrize("options", [{}, {"categorical": ("patient",)}])
def test_a_column_with_as_many_categories_as_rows_is_refused(refused, options):
    told = refused({}, "patient", [f"P{n:03}" for n in range(90)], **options)
    assert "'patient' has 90 different values in 90 rows, like an identifier or free text: 'P000' (line 2)" in told
    assert "drop=['patient']" in told


def test_many_categories_that_repeat_are_a_note_or_too_many(tmp_path, rows):
    several = [[*row, f"c{number % 60}"] for number, row in enumerate(rows)]
    text = " ".join(" ".join(read(tmp_path, several, f"{HEADER},code").about).split())
    assert "note: column 'code' has 60 different values in 90 rows and looks like an identifier; leave it out" in text
    many = [[*row, f"c{number % 101}"] for number, row in enumerate(rows * 2)]
    with pytest.raises(DataError, match="'code' has 101 different values, more than 100 categories: 'c0'"):
        read(tmp_path, many, f"{HEADER},code")


def test_long_codes_are_not_taken_for_the_same_category(tmp_path, rows):
    for number, row in enumerate(rows):
        row.append(str(38341003 + number % 2))
    found = read(tmp_path, rows, f"{HEADER},code", categorical=("code",))
    assert dict(found.columns)["code"] == ("38341003", "38341004")


def test_what_looks_like_a_name_and_is_used_as_a_feature_is_a_note(tmp_path, rows):
    for number, row in enumerate(rows):
        row += [str(number), f"202403{number % 28 + 1:02}", str(number * 7 % 91 + 1000), f"u{number // 2}"]
        row[0] = "North" if number == 3 else row[0]
    text = " ".join(" ".join(read(tmp_path, rows, f"{HEADER},,day,patientID,user").about).split())
    assert "note: column '' looks like the number of the row (0, 1); it is used as a number; leave it out with" in text
    assert "note: column 'day' looks like dates (20240301, 20240302)" in text
    assert "note: column 'patientID' looks like an identifier (1000, 1007)" in text
    assert "note: column 'user' has 45 different values in 90 rows" not in text  # each of them twice
    assert "note: names of sites that differ only in upper and lower case or in blanks: 'north' in 29 rows," in text


def test_several_files_are_named_beside_the_lines(tmp_path, rows):
    for site in ("north", "south"):
        rows_of_site = [row[1:] for row in rows if row[0] == site]
        rows_of_site[4][0] = "x"
        (tmp_path / f"{site}.csv").write_text(lines_of(rows_of_site, "age,smokes,state"))
    with pytest.raises(DataError, match=r"'x' \(north.csv line 6, south.csv line 6\)"):
        table(f"{tmp_path}/*.csv", label="state")


def test_lines_are_those_of_the_file_also_after_fields_of_several_lines(tmp_path):
    text = 'site,note,age,ill\nn,"pain,\nsince May",30,1\n\n' + "".join(f"s,none,{n},{n % 2}\n" for n in range(9))
    (tmp_path / "v.csv").write_text(text + "s,none,old,1\n")
    with pytest.raises(DataError, match=r"'old' \(line 14\)"):
        table(str(tmp_path / "v.csv"), label="ill", site="site")


def test_a_file_without_a_header_is_suspected(tmp_path):
    (tmp_path / "v.csv").write_text("1,1,0\n2,5,1\n")
    with pytest.raises(DataError, match=r"name '1'; give each its own name; if the file has no header, .*columns=\["):
        table(str(tmp_path / "v.csv"), label="y", site="site")


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def fedbeyond(*words):
        monkeypatch.setattr(sys, "argv", ["fedbeyond", *words])
        with pytest.raises(SystemExit) as end:
            main.main()
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return fedbeyond


SUMMARY = """columns: 1 numeric, 1 categorical
  name    kind                   missing  values
  age     numeric                     2%  30 to 80
  smokes  categorical, 2 values           no, yes
sites: 3, with the classes of 'state'
  site   rows  ill  well
"""


def test_check_and_run_print_the_columns_and_the_sites(call, tmp_path, rows):
    rows[0][1] = rows[1][1] = "?"
    (tmp_path / "visits.csv").write_text(lines_of(rows))
    settings = ["--set", f"data={DATA}", "--set", "network=mlp(hidden=[4])", "--set", "target=north"]
    code, out, _ = call("check", *settings)
    assert code == 0 and f"\n\n{SUMMARY}  north    30 " in out
    code, out, err = call("run", *settings, "--set", "train.rounds=1")
    assert code == 0 and err.startswith(SUMMARY) and "results: " in out


def test_heart_disease_is_described_from_what_was_measured(tmp_path):
    line = "{age},1,1,145,0,1,2,150,0,2.3,3,0,6,{num}\n"
    for site in ("a", "b"):
        (tmp_path / f"processed.{site}.data").write_text(line.format(age=63, num=0) + line.format(age=41, num=3))
    about = heart(str(tmp_path)).about
    assert "  age       numeric                        41 to 63" in about
    assert "  chol      numeric                  100%  none" in about and "  a        2   1    1" in about


def test_long_tables_are_shortened_and_what_is_left_out_is_counted(tmp_path):
    rng, names = random.Random(0), [f"a_quite_long_name_of_the_measurement_{n}" for n in range(40)]
    rows = [
        [f"site_{n % 30}", *(f"{rng.random():.3f}" for _ in names), f"disease of the {n % 9} kind"] for n in range(900)
    ]
    rows[0][40] = ""
    about = read(tmp_path, rows, ",".join(("hospital", *names, "state"))).about
    assert all(len(line) <= 80 for line in about)
    assert "  and 20 more columns: 20 numeric, 0 categorical, at most <1% missing" in about
    assert "  and 10 more sites with 300 rows" in about
    (head,) = (line for line in about if line.startswith("  site "))
    assert head.split()[-2:] == ["7", "more"] and "disease of the 0 kind" in head


def test_a_prediction_uses_the_missing_texts_of_the_run(call, tmp_path, rows):
    rows[0][1] = "999"
    (tmp_path / "visits.csv").write_text(lines_of(rows))
    data = DATA.replace(")", ", missing=['999'])")
    settings = ["--set", f"data={data}", "--set", "network=mlp(hidden=[4])", "--set", "train.rounds=1"]
    assert call("run", *settings, "-t", "north")[0] == 0
    model = export(tmp_path / "runs/fedavg/north/seed-0", tmp_path / "model")
    (tmp_path / "new.csv").write_text(lines_of([row[1:3] for row in rows], "age,smokes"))
    predict(model, [tmp_path / "new.csv"], tmp_path / "with.csv")
    (tmp_path / "new.csv").write_text(lines_of([["", rows[0][2]], *(row[1:3] for row in rows[1:])], "age,smokes"))
    predict(model, [tmp_path / "new.csv"], tmp_path / "without.csv")
    assert (tmp_path / "with.csv").read_text() == (tmp_path / "without.csv").read_text()
