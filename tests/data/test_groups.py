"""Groups of custom folders, tables and .npz files: patients stay in one split, and mistakes are refused."""

import numpy as np
import pytest
from PIL import Image

import fedbeyond
from fedbeyond.data.datasets.grouping import file_groups, group_names
from fedbeyond.data.partition import split_file
from fedbeyond.data.partition.splits import Rules, divide
from fedbeyond.errors import DataError
from fedbeyond.experiment import registry

DOMAINS, CLASSES = ("east", "north", "west"), ("ill", "well")


def patient(number):
    return f"p{number % 5}"


@pytest.fixture
def folder(tmp_path):
    """Images named patient_number.png, some in a subfolder; each patient has images of both classes."""
    for domain in DOMAINS:
        for label in CLASSES:
            for number in range(15):
                inner = "deep/" if number == 7 else ""
                path = tmp_path / "scans" / domain / label / f"{inner}{patient(number)}_{label}{number}{domain}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    return tmp_path / "scans"


def files(folder):
    return sorted(folder.rglob("*.png"))


def require_disjoint(data):
    """No patient is in two splits, whatever the seed and the shares."""
    for seed in range(5):
        for share in (0.1, 0.3):
            divided = divide(data, "west", seed, Rules(share, disjoint="groups", test=0.2))
            parts = [part for held in divided.clients.values() for part in (held.train, held.val, held.test)]
            held = [{(site, data[site].groups[row]) for site, rows in part.items() for row in rows} for part in parts]
            assert sum(map(len, held)) == len(set.union(*held)) == 10 and min(map(len, held)) > 0


def expected(data):
    return all(data[d].groups[i] == n.rpartition("/")[2][:2] for d in DOMAINS for i, n in enumerate(data.note(d).names))


def test_groups_of_a_folder_by_a_pattern_or_from_a_file(folder, tmp_path):
    data = fedbeyond.datasets.folder(root=str(folder), size=4, groups=r"(?:^|/)(p\d)_")
    assert expected(data) and len(data["east"].groups) == 30 and set(data["east"].groups) == {f"p{n}" for n in range(5)}
    require_disjoint(data)
    again = registry.make_one("datasets", data.spec)
    assert again["north"].groups == data["north"].groups and "groups='(?:^|/)(p\\d)_'" in data.spec
    lines = [f"{path.relative_to(folder)},{path.name[:2]}" for path in files(folder)]
    lines[3] = f"{files(folder)[3].name},{files(folder)[3].name[:2]}"  # a unique name needs no folders
    (tmp_path / "patients.csv").write_text("\n".join(["file,group", *lines, "other.png,p9"]))
    assert expected(fedbeyond.datasets.folder(root=str(folder), size=4, groups=tmp_path / "patients.csv"))


def test_groups_of_a_table_are_no_feature(tmp_path):
    rows = [f"{d},{n % 5},{n % 7},{'ill' if n % 2 else 'well'}" for d in DOMAINS for n in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["site,patient,age,state", *rows]))
    data = registry.make_one("datasets", f"table(path='{tmp_path}/t.csv', site=site, label=state, groups=patient)")
    assert [name for name, _ in data.columns] == ["age"] and data["east"].groups == tuple(str(n % 5) for n in range(30))
    require_disjoint(data)
    plain = fedbeyond.datasets.table(path=tmp_path / "t.csv", site="site", label="state")
    assert [name for name, _ in plain.columns] == ["patient", "age"] and not plain["east"].groups


def test_a_split_of_grouped_data_is_refused_for_data_with_other_groups(tmp_path):
    rows = [f"{d},{n % 5},{n % 3},{n % 7},{n % 2}" for d in DOMAINS for n in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["site,patient,ward,age,state", *rows]))

    def read(**options):
        return fedbeyond.datasets.table(path=tmp_path / "t.csv", site="site", label="state", **options)

    data = read(groups="patient")
    divided = divide(data, "west", 0, Rules(0.2, disjoint="groups"))
    split_file.save(tmp_path / "split.json", divided, data, "west")
    assert (
        split_file.load(tmp_path / "split.json", read(groups="patient"), "west").clients.keys()
        == divided.clients.keys()
    )
    for other in (read(), read(groups="ward")):
        with pytest.raises(DataError, match="other names, labels, groups or contents"):
            split_file.load(tmp_path / "split.json", other, "west")


@pytest.mark.parametrize("parts", [("",), ("_train", "_test")])
@pytest.mark.parametrize("kind", [str, int, bytes])
def test_groups_of_npz_files_are_an_array_in_each(tmp_path, parts, kind):
    make = {str: patient, int: lambda n: n % 5, bytes: lambda n: patient(n).encode()}[kind]
    x, y = np.zeros((30, 4, 4, 3), np.uint8), np.arange(30) % 2
    for domain in DOMAINS:
        x[0, 0, 0] = DOMAINS.index(domain)
        cut = np.array_split(np.arange(30), len(parts))
        held = {}
        for part, rows in zip(parts, cut, strict=True):
            held |= {f"x{part}": x[rows], f"y{part}": y[rows], f"who{part}": np.array([make(n) for n in rows])}
        np.savez(tmp_path / f"{domain}.npz", **held)
    data = fedbeyond.datasets.npz(root=tmp_path, groups="who", size=4)
    assert data["north"].groups == tuple(patient(n) if kind is not int else str(n % 5) for n in range(30))
    require_disjoint(data)
    with pytest.raises(DataError, match=r"east.npz: no array 'whom(_train)?' for groups=whom; it has x"):
        fedbeyond.datasets.npz(root=tmp_path, groups="whom")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("(p", r"groups='\(p' is neither a CSV file nor a regular expression \(.*\); give one as in"),
        (r"^p\d", r"has 0 parts in parentheses; put the part of the file name"),
        (r"(p)(\d)", r"has 2 parts in parentheses"),
        (r"^(p\d)_", r"6 of 90 images have no group by .*: .*deep/p2_.*; give a group to every image"),
        (r"(x*)", r"90 of 90 images have no group"),
        ("none.csv", r"groups='none.csv': no such file; give a CSV file with the columns file and group, or a regular"),
        ("name,group\na,b", r"no column 'file'; its columns are name, group"),
        ("file,group\np0_ill0east.png,p0", r"89 of 90 images have no group by groups=.*g.csv.*; give a group"),
        ("file,group\na,b\nd,b\na,c", r"g.csv: line 2 and line 4 give two groups to one image; keep one of them$"),
    ],
)
def test_groups_of_files_that_cannot_be_right_are_refused(folder, tmp_path, given, message):
    if "\n" in given:
        (tmp_path / "g.csv").write_text(given)
        given = str(tmp_path / "g.csv")
    with pytest.raises(DataError, match=message):
        file_groups(given, folder, files(folder))


def test_numbers_in_file_names_and_csv_files_have_one_spelling_too(tmp_path):
    """As in tables and arrays: a patient is not two because somebody wrote a zero, or a spreadsheet a fraction."""
    paths = [
        tmp_path / "east" / "ill" / f"{number}_x{place}.png" for place, number in enumerate(("1", "01", "001", "2"))
    ]
    assert list(file_groups(r"^(\d+)_", tmp_path, paths).values()) == ["1", "1", "1", "2"]
    spelled = zip(paths, ("7", "07", "7.0", "8"), strict=True)
    lines = [f"{path.relative_to(tmp_path)},{group}" for path, group in spelled]
    (tmp_path / "g.csv").write_text("\n".join(["file,group", *lines, lines[1].replace("07", "7")]))
    assert list(file_groups(str(tmp_path / "g.csv"), tmp_path, paths).values()) == ["7", "7", "7", "8"]


def test_a_short_name_of_several_images_is_refused(folder, tmp_path):
    for label in CLASSES:
        Image.new("RGB", (4, 4)).save(folder / "east" / label / "0.png")
    (tmp_path / "g.csv").write_text("file,group\n0.png,p0\n")
    with pytest.raises(
        DataError, match=r"0.png is the name of 2 images; write it with its folders, as in east/ill/0.png"
    ):
        file_groups(str(tmp_path / "g.csv"), folder, [path for path in files(folder) if path.name == "0.png"])


def test_a_table_without_a_group_in_a_row_is_refused_and_so_is_its_check(tmp_path, call):
    (tmp_path / "t.csv").write_text("site,patient,age,state\nn,1,3,a\nn,,4,b\ns,2,3,a\ns,2,3,b\n")
    spelled = f"table(path='{tmp_path}/t.csv', site=site, label=state, groups=patient)"
    with pytest.raises(DataError, match=r"t.csv, line 3: no value in column 'patient'; give the group of every row"):
        registry.make_one("datasets", spelled)
    code, out, _ = call("data", "check", spelled)
    assert code == 1 and "line 3: no value in column 'patient'" in out
    with pytest.raises(DataError, match=r"groups='site' is the column of the site; give another"):
        registry.make_one("datasets", spelled.replace("groups=patient", "groups=site"))


def test_names_of_groups_have_one_spelling_and_long_numbers_keep_their_digits():
    assert group_names(np.array([1, 2.0, 1]), 3, "g") == group_names(["1", " 2", "01"], 3, "g") == ("1", "2", "1")
    long = ["1234567890123456781", "1234567890123456782"]
    assert group_names(long, 2, "g") == group_names(list(map(int, long)), 2, "g") == tuple(long)
