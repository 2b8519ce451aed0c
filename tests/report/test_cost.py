"""What a round costs, as the ledger and the clock have it."""

from itertools import pairwise

from fedbeyond.experiment import results
from fedbeyond.experiment.config import parse
from fedbeyond.experiment.runner import prepare, run
from fedbeyond.report import cost


def test_bytes_are_those_of_the_trees_and_seconds_those_of_the_clock(tmp_path, small):
    for method in ("fedavg", "scaffold"):
        config = parse({**small, "method": method, "train": {"rounds": 2, "batchnorm": "average"}})
        assert len(list(run(prepare(config), tmp_path / method))) == 2
    lines, times = results.load([tmp_path]), results.times([tmp_path])
    assert len(times) == 4 and {line["method"] for line in times} == {"fedavg", "scaffold"}
    model = lines[0]["bytes_down"]["photo"]
    (params,) = {
        name["control"]
        for line in lines
        for kinds in line["bytes_up"].values()
        for name in kinds.values()
        if "control" in name
    }
    by_name = {row[0]: row[1:] for row in cost.rows(lines, times)[1:]}
    assert by_name["fedavg"][2:6] == [cost.format_bytes(model)] * 3 + ["0 B"]
    assert by_name["scaffold"][2:6] == [cost.format_bytes(model + params)] * 3 + [cost.format_bytes(params)]
    assert float(by_name["fedavg"][7]) > 0 and by_name["fedavg"][8] == "1.0"


def test_parameters_numbers_sent_and_operations_stand_in_the_table_and_beside_the_last_round(tmp_path, small):
    config = parse({**small, "method": "scaffold", "train": {"rounds": 2, "batch_size": 64}})
    setup = prepare(config)
    assert len(list(run(setup, tmp_path))) == 2
    first, last = results.times([tmp_path])
    net = setup.nets["model"]
    params = sum(param.numel() for param in net.parameters())
    buffers = sum(buffer.numel() for buffer in net.buffers())
    assert "flops" not in first and last["parameters"] == params
    assert last["sent"] == dict.fromkeys(setup.engine.clients, 2 * params + buffers)  # the model and the control
    # of each image: four convolutions, whose maps are half as wide after each of three poolings, and the head; once
    # forward and twice backward, but for the gradient of the images themselves
    channels = pairwise((3, 4, 8, 16, 16))
    each = [2 * 9 * a * b * side**2 for (a, b), side in zip(channels, (32, 16, 8, 4), strict=True)] + [2 * 16 * 7]
    once = 3 * sum(each) - each[0]
    assert last["flops"] == {name: once * site.size for name, site in setup.engine.sites.items()}
    row = cost.rows(results.load([tmp_path]), [first, last])[1]
    mean = sum(last["flops"].values()) / 3
    assert row[1:3] == [cost.format_count(params), cost.format_count(2 * params + buffers)] and row[
        7
    ] == cost.format_count(mean)


def test_bytes_at_each_site_stand_by_their_kind():
    def line(number, east):
        left = {"east": {"parameters": {"model": east, "control": 500}, "scalars": {"gap": 4}}}
        left |= {"west": {"parameters": {"model": 1000}}} if number else {}
        return {
            "method": "m",
            "bytes_up": left,
            "bytes_down": dict.fromkeys(left, 800),
            "private_bytes": {"east": 20, "west": 40},
        }

    assert cost.by_site([line(0, 1000), line(1, 2000)]) == [
        ["method", "site", "parameters", "scalars", "bytes down", "private bytes"],
        ["m", "east", "2.0 kB", "4 B", "800 B", "20 B"],
        ["m", "west", "1.0 kB", "0 B", "800 B", "40 B"],
    ]


def test_what_results_without_times_or_of_an_older_version_do_not_say_has_no_column():
    line = {"method": "fedavg", "bytes_up": {"a": {"parameters": {"model": 1500}}}}
    assert cost.rows([line], [])[1] == ["fedavg", "1.5 kB", "1.5 kB"]


def test_times_of_a_result_file_lie_beside_it(tmp_path):
    (tmp_path / "a.times.jsonl").write_text('{"method": "fedavg", "round": 0, "seconds": 2.0}\n')
    assert cost.seconds(results.times([tmp_path / "a.jsonl"]), "fedavg") == 2.0


def test_bytes_as_people_say_them():
    assert [cost.format_bytes(n) for n in (12, 1234, 123456, 9_068_220, 2.5e9)] == [
        "12 B",
        "1.2 kB",
        "123 kB",
        "9.1 MB",
        "2.5 GB",
    ]
    assert [cost.format_count(n) for n in (12, 4059, 11_200_000, 26.5e9, 3e15)] == [
        "12",
        "4.1 k",
        "11.2 M",
        "26.5 G",
        "3.0 P",
    ]
