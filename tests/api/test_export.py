"""Models of own networks and own data: exported and used in the same process, and in another one."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedbeyond as fb
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry, run_folder
from fedbeyond.export.export import Exported
from fedbeyond.export.predict import predict
from fedbeyond.report.figures.runs import Run, open_run

OPTIONS = {"target": "c", "rounds": 2, "batch_size": 8, "progress": False}


def rows_net(task):
    return nn.Sequential(nn.Linear(task.shape[0], 4), nn.ReLU(), nn.Linear(4, len(task.classes)))


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    age, site = rng.normal(50, 9, 90).round(1), rng.permutation(np.repeat(["a", "b", "c"], 30))
    frame = pd.DataFrame({"site": site, "age": age, "sex": rng.choice(["m", "f"], 90)})
    frame["ill"] = np.where(age > 50, "yes", "no")
    frame.loc[3, "age"] = -9
    return frame


@pytest.fixture
def data(frame):
    return fb.datasets.from_pandas(frame, site="site", label="ill", missing=["-9.0"], name="visits")


def test_a_model_of_a_frame_predicts_a_table_with_its_label_and_missing_values(data, frame, tmp_path):
    out = fb.run("fedavg", data, network=rows_net, **OPTIONS).export(tmp_path / "model")
    card = json.loads((out / "model.json").read_text())
    assert card["label"] == "ill" and card["missing"] == ["-9.0"]
    assert card["network_factory"] == f"{__name__}:rows_net"
    written = []
    for value in ("-9.0", ""):
        frame.astype({"age": str}).replace({"age": {"-9.0": value}}).to_csv(tmp_path / "visits.csv", index=False)
        predict(out, [tmp_path / "visits.csv"], tmp_path / f"predictions{value}.csv")
        written.append(pd.read_csv(tmp_path / f"predictions{value}.csv").filter(like="p"))
    pd.testing.assert_frame_equal(*written)


def test_a_model_of_an_own_network_says_what_to_import_in_another_process(data, tmp_path):
    run = fb.run("fedavg", data, network=rows_net, **OPTIONS)
    out, rows = run.export(tmp_path / "model"), torch.zeros(4, 3)
    expected = Exported(out).probabilities(rows)
    assert torch.equal(run.model.predict_proba(rows), expected)
    del registry.REGISTRY["networks"]["rows_net"]
    with pytest.raises(ConfigError, match=rf"'rows_net' of {__name__}:rows_net, which is unknown here; call fedbeyond"):
        Exported(out)
    assert torch.equal(Exported(out, rows_net).probabilities(rows), expected)
    body = fb.run("fedavg", data, network=fb.networks.classifier(nn.Linear(3, 4)), **OPTIONS)
    name, out = body.config.network, body.export(tmp_path / "body")
    del registry.REGISTRY["networks"][name]
    with pytest.raises(ConfigError, match=r"of a script or notebook, which is unknown here; .*, your function\) first"):
        Exported(out)


def test_a_stored_run_with_own_data_is_read_in_another_process_and_says_what_it_lacks(data, tmp_path):
    run = fb.run("fedavg", data, network="mlp", out=tmp_path, **OPTIONS)
    program = f"""
import fedbeyond as fb
run = fb.load({str(run.folder)!r})
print(run.score(), run.report({str(tmp_path / "page.html")!r}).exists())
for use in (lambda: run.model, lambda: run.export("model"), lambda: run.resume(3)):
    try:
        use()
    except fb.errors.ConfigError as error:
        print(error)
"""
    first, *others = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    assert first == f"{run.score()} True" and len(others) == 3
    assert all("with its own datasets.visits, which is unknown here; call fedbeyond.run" in line for line in others)


def test_a_loaded_run_is_not_used_with_changed_code(data, tmp_path):
    folder = fb.run("fedavg", data, network=rows_net, out=tmp_path, **OPTIONS).folder
    fb.register("networks", "rows_net", lambda task: nn.Linear(task.shape[0], 2))
    with pytest.raises(ConfigError, match=r"with its own networks\.rows_net, which has changed since"):
        _ = fb.load(folder).model
    with pytest.raises(ConfigError, match=r"with its own networks\.rows_net, which has changed since"):
        open_run(Run(folder, run_folder.read_config(folder)))
