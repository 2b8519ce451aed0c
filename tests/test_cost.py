"""What a round costs, as the ledger and the clock have it."""

from fedbeyond import results
from fedbeyond.config import parse
from fedbeyond.experiment import prepare, run
from fedbeyond.report import cost


def test_bytes_are_those_of_the_trees_and_seconds_those_of_the_clock(tmp_path, small):
    for method in ("fedavg", "scaffold"):
        config = parse({**small, "method": method, "train": {"rounds": 2}})
        assert len(list(run(prepare(config), tmp_path / method))) == 2
    lines, times = results.load([tmp_path]), results.times([tmp_path])
    assert len(times) == 4 and {line["method"] for line in times} == {"fedavg", "scaffold"}
    model = lines[0]["down"]["photo"]
    (params,) = {
        name["control"]
        for line in lines
        for kinds in line["left"].values()
        for name in kinds.values()
        if "control" in name
    }
    by_name = {row[0]: row[1:] for row in cost.rows(lines, times)[1:]}
    assert by_name["fedavg"][:4] == [cost.size(model)] * 3 + ["0 B"]
    assert by_name["scaffold"][:4] == [cost.size(model + params)] * 3 + [cost.size(params)]
    assert float(by_name["fedavg"][4]) > 0 and by_name["fedavg"][5] == "1.0"


def test_results_without_times_or_of_an_older_version_have_gaps():
    line = {"method": "fedavg", "left": {"a": {"parameters": {"model": 1500}}}}
    assert cost.rows([line], [])[1] == ["fedavg", "1.5 kB", "1.5 kB", "-", "-", "-", "-"]


def test_times_of_a_result_file_lie_beside_it(tmp_path):
    (tmp_path / "a.times.jsonl").write_text('{"method": "fedavg", "round": 0, "seconds": 2.0}\n')
    assert cost.seconds(results.times([tmp_path / "a.jsonl"]), "fedavg") == 2.0


def test_bytes_as_people_say_them():
    assert [cost.size(n) for n in (12, 1234, 123456, 9_068_220, 2.5e9)] == [
        "12 B",
        "1.2 kB",
        "123 kB",
        "9.1 MB",
        "2.5 GB",
    ]
