"""Figures of models and data: what they show is what the model says, what the generator makes, what the images are."""

import csv
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbeyond.classifier import Classifier, logits
from fedbeyond.cli import main
from fedbeyond.errors import ConfigError, StorageError
from fedbeyond.evaluation.metrics import evaluate
from fedbeyond.evaluation.selection import select_round
from fedbeyond.experiment import checkpoint, run_folder, runner
from fedbeyond.experiment.build import dataset
from fedbeyond.experiment.config import load, parse
from fedbeyond.experiment.figure_kinds import KINDS
from fedbeyond.images import pixels
from fedbeyond.report.figure import panels
from fedbeyond.report.figures import cam, gap, generated, surface, tsne
from fedbeyond.report.figures.draw import draw
from fedbeyond.report.figures.runs import balanced_rows, features, finished_runs, open_run
from fedbeyond.testing.toy import TASK, tiny

METHODS = ("fedadg(classify=0, align=1)", "fedavg", "feddag(alpha=0.5, width=2, warmup=1)")


def play(out, **table):
    config = parse({"target": "sketch", "data": "styles(share=0.05)", "network": "convnet(width=4)", **table})
    folder = run_folder.path(out, config)
    list(runner.run(runner.prepare(config), folder))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two rounds of three methods."""
    out = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        play(out, method=method, train={"rounds": 2, "batch_size": 16})
    return out


@pytest.fixture(scope="module")
def held(runs):
    """The run of each of them, opened."""
    return {method: open_run(finished_runs([runs], methods=[method])[0]) for method in METHODS}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A run on a table."""
    out = tmp_path_factory.mktemp("tables")
    rows = [f"{site},{i % 2},{i % 7 + shift},{i % 2 * 3}" for shift, site in enumerate("abc") for i in range(20)]
    (out / "visits.csv").write_text("\n".join(["site,label,age,height", *rows]))
    data = f"table(path='{out / 'visits.csv'}', site=site, label=label)"
    play(out / "runs", method="fedavg", data=data, network="mlp(hidden=[4])", target="a", train={"rounds": 1})
    return out / "runs"


def only(kind, runs, tmp_path, **options):
    """The one figure that is drawn, and its numbers as rows by name."""
    ((figure, paths),) = draw(kind, [runs], tmp_path, **options)
    with open(paths[2]) as file:
        return figure, list(csv.DictReader(file))


def test_runs_are_found_by_target_seed_and_method_in_full_or_without_options(runs):
    assert [run.config.method for run in finished_runs([runs])] == list(METHODS)
    assert [run.config.method for run in finished_runs([runs], methods=["feddag", "fedavg"])] == [
        METHODS[2],
        METHODS[1],
    ]
    assert finished_runs([runs / "fedavg" / "sketch" / "seed-0"])[0].config.method == "fedavg"
    for options, message in (
        ({"target": "sketc"}, "no finished run has target sketc; did you mean 'sketch'"),
        ({"seed": 4}, "no finished run has seed 4; known: 0"),
        ({"methods": ["fedavgg"]}, "no finished run is of fedavgg; did you mean 'fedavg'"),
    ):
        with pytest.raises(ConfigError, match=message):
            finished_runs([runs], **options)
    with pytest.raises(StorageError, match="has no finished run"):
        finished_runs([runs / "nothing"])


def test_runs_of_two_settings_are_not_compared(runs, tmp_path):
    play(tmp_path, method="fedprox", train={"rounds": 1})
    with pytest.raises(ConfigError, match="have different settings"):
        list(draw("cam", [runs, tmp_path]))


def test_a_reference_with_a_model_at_each_site_is_left_out_unless_it_is_asked_for(tmp_path):
    for method in ("fedavg", "local"):
        play(tmp_path, method=method, train={"rounds": 1})
    figure, _ = only("gap", tmp_path, tmp_path)
    assert figure.name == "gap-fedavg-sketch-seed-0"
    figure, rows = only("cam", tmp_path, tmp_path)
    assert {row["method"] for row in rows} == {"fedavg"}
    with pytest.raises(ConfigError, match="local has no global model, only one at each site; choose others"):
        only("cam", tmp_path, tmp_path, methods=["local"])


def test_images_are_drawn_from_all_classes_in_turn():
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 10)
    assert torch.bincount(labels[balanced_rows(labels, 11)]).tolist() == [4, 3, 4]
    assert balanced_rows(labels, 99).tolist() == list(range(63))


def test_a_plane_goes_through_its_models_on_two_orthonormal_directions():
    models = [torch.tensor(numbers).double() for numbers in ([1.0, 1, 1], [4.0, 1, 1], [2.0, 1, 3])]
    plane = surface.plane_through(models)
    assert np.allclose(plane.places, [(0, 0), (3, 0), (1, 2)])
    for place, model in zip(plane.places, models, strict=True):
        assert torch.allclose(plane.at(*place), model)
    directions = torch.stack((plane.along, plane.across))
    assert torch.allclose(directions @ directions.T, torch.eye(2).double())
    with pytest.raises(ConfigError, match="lie on one line"):
        surface.plane_through([models[0], models[1], 2 * models[1] - models[0]])


def plain(width=3):
    """A network without BatchNorm."""
    return Classifier(nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU()), width, 3)


def test_at_the_three_models_the_surface_is_what_evaluate_finds_there():
    torch.manual_seed(0)
    nets, split = [plain() for _ in range(3)], (torch.randn(20, 3, 6, 6), torch.randint(3, (20,)))
    want = [evaluate(net, split) for net in nets]
    plane = surface.plane_through([surface.flat(net) for net in nets])
    told = surface.explore(plain(), plane, plane.places, {"all": split}, ())
    for ((loss, accuracy),), there in zip(told, want, strict=True):
        assert loss == pytest.approx(there["loss"], rel=1e-6) and accuracy == pytest.approx(there["accuracy"])


def test_statistics_are_recomputed_as_the_mean_over_batches():
    torch.manual_seed(0)
    net, batches = tiny(TASK).train(), torch.rand(2, 8, 3, 6, 6)
    surface.recompute_statistics(net, list(batches))
    seen = [net.body[0](x).detach().transpose(0, 1).flatten(1) for x in batches]
    assert torch.allclose(net.body[1].running_mean, (seen[0].mean(1) + seen[1].mean(1)) / 2, atol=1e-6)
    assert torch.allclose(net.body[1].running_var, (seen[0].var(1) + seen[1].var(1)) / 2, atol=1e-6)
    assert not net.training


def test_a_surface_says_of_its_models_what_their_runs_said(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(surface, "STEPS", 4)
    figure, rows = only("surface", runs, tmp_path)
    assert len(rows) == 3 + 3 + 4 * 4 and all(method in figure.caption for method in METHODS)
    for row, run in zip(rows, finished_runs([runs]), strict=False):
        line = select_round(run_folder.lines(run.folder))["scores"]["sketch"]["test"]
        assert float(row["loss sketch"]) == pytest.approx(line["loss"], rel=1e-5) and row["statistics"] == "own"
        assert float(row["accuracy sketch"]) == pytest.approx(line["accuracy"], rel=1e-5)
    assert [row["statistics"] for row in rows[3:]] == ["recomputed"] * 19
    x, y = ({float(row[axis]) for row in rows[6:]} for axis in "xy")
    assert len(x) == len(y) == 4 and max(x) - min(x) == pytest.approx(max(y) - min(y), rel=1e-4)


def test_models_of_different_networks_are_on_no_plane(held):
    one = held["fedavg"]
    other = one._replace(nets={"model": plain()})
    with pytest.raises(ConfigError, match="surface needs models of one network"):
        surface.ensure_same_network([one, one, other])


def test_a_class_activation_map_is_the_sum_of_maps_weighed_by_the_head(held):
    torch.manual_seed(0)
    net, x = tiny(TASK).eval(), torch.rand(2, 3, 6, 6)
    toy = held["fedavg"]._replace(nets={"model": net})
    maps, probabilities = cam.activation_maps(toy, x)
    answers = net(x).argmax(1)
    for image in range(2):
        want = torch.zeros(6, 6)
        for channel in range(4):
            want += net.head.weight[answers[image], channel] * net.body(x)[image, channel]
        assert torch.allclose(maps[image], want, atol=1e-6)
    assert torch.allclose(probabilities, net(x).softmax(1))
    grey = cam.overlaid(torch.full((3, 8, 8), 0.5), torch.ones(2, 2))
    assert torch.isfinite(grey).all() and len(grey.unique()) <= 3  # a map without a middle is no error


def test_cams_tell_class_answer_and_confidence_of_one_image_a_class(runs, tmp_path, held):
    figure, rows = only("cam", runs, tmp_path)
    images, labels = held["fedavg"].unseen["sketch"]
    said = logits(held["fedavg"].net, images).softmax(1)
    mine = [row for row in rows if row["method"] == "fedavg"]
    assert len(rows) == 3 * len(mine) and [row["class"] for row in mine] == list(held["fedavg"].classes)
    for row in mine:
        place = images.rows.tolist().index(int(row["image"]))
        assert held["fedavg"].classes[labels[place]] == row["class"]
        assert held["fedavg"].classes[said[place].argmax()] == row["predicted"]
        assert float(row["confidence"]) == pytest.approx(float(said[place].max()), rel=1e-5)
    assert "fedavg" in figure.caption and "sketch" in figure.title


def test_a_network_without_maps_is_refused_with_those_that_have_them(tables, tmp_path):
    with pytest.raises(
        ConfigError, match=r"cam needs feature maps, and mlp\(hidden=\[4\]\) gives only logits and features;"
    ):
        only("cam", tables, tmp_path)
    with pytest.raises(ConfigError, match=r"gap needs the maps .* use convnet"):
        only("gap", tables, tmp_path)


def test_what_is_generated_less_the_image_is_the_perturbation(runs, tmp_path, held):
    run = held[METHODS[2]]
    x = run.train["photo"][0][:3]
    run.load_last_round()
    images, made = generated.generate(run, x)
    perturbation = made - images
    assert torch.allclose(images, x / 127.5 - 1, atol=1e-6)
    with torch.no_grad():
        drawn = run.nets["generator"](x / 127.5 - 1)
        unit = 2 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)  # alpha counts in ImageNet's standard deviations
        assert torch.allclose(perturbation, 0.5 * unit * drawn, atol=1e-6)
    assert perturbation.abs().max() > 1e-4
    _, rows = only("generated", runs, tmp_path)
    assert [row["domain"] for row in rows] == ["photo"] * 3 + ["painting"] * 3 + ["cartoon"] * 3
    domains = dataset("styles(share=0.05)")
    for row in rows:
        image = domains.images[row["domain"]][0][int(row["image"])][None]
        image, made = generated.generate(run, image)
        added = made - image
        assert float(row["norm of perturbation"]) == pytest.approx(float(added.norm()), rel=1e-4)
        assert domains.classes[domains.images[row["domain"]][1][int(row["image"])]] == row["class"]


@pytest.mark.parametrize(
    ("method", "most"),
    [
        ("ndag", [0.3 * 0.458, 0.3 * 0.448, 0.3 * 0.45]),
        ("ndag(space=input)", [0.3] * 3),
        ("feddag:paper(alpha=0.7)", [0.7 * 0.458, 0.7 * 0.448, 0.7 * 0.45]),
        ("feddag(alpha=3, clamp=true)", [1.0] * 3),
        ("ddaig(strength=2)+ga", [2.0] * 3),
        ("ats", [1.0] * 3),
    ],
)
def test_how_strongly_a_method_perturbs_is_read_from_its_spelling(method, most):
    made = generated.maker(method)(torch.ones_like, torch.zeros(1, 3, 2, 2))
    assert made[0, :, 0, 0].tolist() == pytest.approx(most)


def test_without_a_generator_there_is_nothing_generated(runs, tmp_path):
    with pytest.raises(ConfigError, match=r"no run has a method that generated can draw .* feddag, ndag, ddaig or ats"):
        only("generated", runs, tmp_path, methods=["fedavg"])


def test_gram_matrices_are_means_of_products_of_maps():
    torch.manual_seed(0)
    net, x = tiny(TASK).eval(), torch.rand(5, 3, 6, 6)
    first, second = gap.grams(net, x, torch.arange(5))
    for stage, found_there in ((net.body[:1], first), (net.body, second)):
        want = torch.zeros(4, 4).double()
        for maps in stage(x).detach().double():
            rows = maps.reshape(4, 36)
            want += rows @ rows.T / (4 * 36) / 5
        assert torch.allclose(found_there, want)


def test_the_distance_of_styles_is_relative_and_none_to_oneself():
    a, b = (
        [torch.diag(torch.tensor([3.0, 4.0]))],
        [
            torch.diag(
                torch.tensor(
                    [
                        0.0,
                        0.0,
                    ]
                )
            )
        ],
    )
    assert gap.gram_distance(a, a) == 0 and gap.gram_distance(b, b) == 0
    assert gap.gram_distance(a, b) == 2  # 5 / (5 / 2)
    assert gap.gram_distance([3 * a[0]], [3 * torch.eye(2)]) == pytest.approx(gap.gram_distance(a, [torch.eye(2)]))


def test_another_half_of_a_domain_is_nearer_than_another_domain(runs, tmp_path):
    _, rows = only("gap", runs, tmp_path, methods=["fedavg"])
    names = ["photo", "painting", "cartoon", "sketch"]
    matrix = np.array([[float(row[name]) for name in names] for row in rows])
    assert [row["domain"] for row in rows] == names and np.allclose(matrix, matrix.T)
    others = matrix + 9 * np.eye(4)
    assert (np.diag(matrix) < others.min(1)).all() and (np.diag(matrix) > 0).all()


def test_the_points_of_tsne_are_images_of_the_class_and_domain_they_are_called(held):
    run = held["fedavg"]
    points, classes, domains = tsne.gather_features(run)
    assert len(points) == len(classes) == len(domains) and dict.fromkeys(domains) == dict.fromkeys(run.domains)
    for name, (images, labels) in run.domains.items():
        every = features(run, images[:])
        for place in [i for i, home in enumerate(domains) if home == name]:
            near = (every - points[place]).abs().amax(1) < 1e-5
            assert classes[place] in labels[near].tolist()
    assert torch.allclose(every[:4], run.net.features(pixels(images[:4])), atol=1e-5)


def test_of_fedadg_the_generators_features_are_a_further_domain(runs, held, tmp_path):
    run = held[METHODS[0]]
    points, classes, domains = tsne.gather_features(run)
    made = [place for place, home in enumerate(domains) if home == tsne.REFERENCE]
    assert len(made) == tsne.MAX_POINTS // 5 and {classes[place] for place in made} == set(range(7))
    saved = checkpoint.load(run.run.folder / "checkpoint.safetensors")[0]["state"]["server"]["generator"]["params"]
    noise = torch.rand(len(made), 8, generator=torch.Generator().manual_seed(0))
    given = torch.cat((noise, F.one_hot(torch.tensor([classes[place] for place in made]), 7)), 1)
    inner = F.leaky_relu(given @ saved["body.0.weight"].T + saved["body.0.bias"])
    assert torch.allclose(points[made], (inner @ saved["body.2.weight"].T + saved["body.2.bias"]).relu(), atol=1e-5)
    figure, rows = only("tsne", runs, tmp_path)
    assert [(row["class"], row["domain"]) for row in rows] == [
        (run.classes[place], home) for place, home in zip(classes, domains, strict=True)
    ]
    assert "last round" in figure.caption and "reference" in figure.caption


def test_more_domains_than_colours_are_all_drawn():
    _, (axis,) = panels(1)
    names = [f"site {number}" for number in range(10)]
    tsne.scatter(
        axis, np.arange(20.0).reshape(10, 2), names, ["o"] * 10, "domain", {name: (name, "o") for name in names}
    )
    drawn = np.concatenate([points.get_offsets() for points in axis.collections])
    assert sorted(map(tuple, drawn.tolist())) == [(2.0 * i, 2.0 * i + 1) for i in range(10)]


def test_tables_have_features_too(tables, tmp_path):
    _, rows = only("tsne", tables, tmp_path)
    assert {row["domain"] for row in rows} == {"a", "b", "c"} and {row["class"] for row in rows} == {"0", "1"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_is_the_same_bytes_every_time(kind, runs, tmp_path, monkeypatch):
    monkeypatch.setattr(surface, "STEPS", 3)
    options = {"methods": ["fedavg"]} if kind == "tsne" else {}
    first, second = (
        [path.read_bytes() for _, paths in draw(kind, [runs], tmp_path / out, **options) for path in paths]
        for out in "ab"
    )
    assert first == second and len(first) == 4
    about = json.loads(first[3])
    assert about["title"] and "seed 0" in about["caption"]
    assert b"<text" in first[0] and b"#000000" not in first[0]  # in a colour that a dark page can change


def test_each_method_that_is_named_has_a_figure_of_its_own(runs, tmp_path):
    made = [figure.name for figure, _ in draw("gap", [runs], tmp_path, methods=["fedavg", "fedadg"])]
    assert made == ["gap-fedavg-sketch-seed-0", "gap-fedadg-classify=0-align=1-sketch-seed-0"]


def test_a_surface_of_fewer_runs_than_three_is_refused(runs, tmp_path):
    with pytest.raises(
        ConfigError, match=r"surface needs 3 runs of one target, and got 1 \(fedavg; sketch unseen, seed 0\)"
    ):
        only("surface", runs, tmp_path, methods=["fedavg"])


def test_a_bench_draws_the_figures_it_is_asked_for_and_says_which_it_cannot(tmp_path, monkeypatch, capsys):
    small = ["data=styles(share=0.05)", "network=convnet(width=4)", "train.rounds=1", "target=photo"]
    words = [word for setting in (*small, 'bench.figures=["gap", "generated"]') for word in ("--set", setting)]
    monkeypatch.setattr("sys.argv", ["fedbeyond", "bench", *words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    told = capsys.readouterr()
    assert not ended.value.code and "left out: figure generated: no run has" in told.err
    assert (tmp_path / "figures" / "gap-fedavg-photo-seed-0.svg").exists() and (tmp_path / "report.html").exists()
    monkeypatch.setattr("sys.argv", ["fedbeyond", "figure", "gapp", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2 and "figure 'gapp' is not known; did you mean 'gap'" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["fedbeyond", "figure", "gap", str(tmp_path), "--out", str(tmp_path / "mine")])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert not ended.value.code and str(tmp_path / "mine" / "gap-fedavg-photo-seed-0.png") in capsys.readouterr().out


def test_figures_are_checked_with_the_configuration_and_change_no_run():
    with pytest.raises(ConfigError, match=r"bench\.figures\.1 = 'cams' is not valid: .* did you mean 'cam'"):
        load(None, ['bench.figures=["gap", "cams"]'])
    assert load(None, ['bench.figures=["gap"]']).identity() == load(None).identity()
