"""What `fedbeyond list` says is what the code does."""

import pytest

from fedbeyond.cli.catalogue import HEAD, listing, row
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.experiment.papers import paper
from support.paths import ROOT

DOCS = ROOT / "docs"
PARTS = [(group, name) for group in ("methods", "wrappers") for name in registry.REGISTRY[group]]


@pytest.mark.parametrize(("group", "name"), PARTS)
def test_every_method_has_a_paper_with_authors_and_a_year(group, name):
    found = paper(group, name)
    if name == "local":
        assert found is None
    else:
        assert found and len(found.title) > 10 and 1990 < int(found.year) <= 2026 and ":" not in found.authors
        assert not found.link or found.link.startswith("https://")


def test_a_row_is_what_the_method_declares():
    told = dict(zip(HEAD, row("methods", "scaffold"), strict=True))
    assert told["sent"] == "model, control" and told["private state"] == "control"
    assert (told["paper"], told["year"], told["wrappers"]) == ("Karimireddy et al., ICML", "2020", "all")
    told = dict(zip(HEAD, row("methods", "feddag"), strict=True))
    assert told["extra phases"] == "sha_score" and told["wrappers"].startswith("all except ga, sha")
    assert row("methods", "erm")[3] == "all images and labels"
    assert row("wrappers", "ga")[3] == "ga_received (scalars), ga_trained (scalars)"
    assert dict(zip(HEAD, row("methods", "fedavg"), strict=True))["private state"] == "-"


def test_a_table_runs_no_round(monkeypatch, caplog):
    monkeypatch.delattr("fedbeyond.client.answer")
    monkeypatch.delattr("fedbeyond.engine.simulator.Simulator._answer")
    assert len(list(listing("methods"))) == len(list(listing("wrappers"))) == 1 and not caplog.records


def test_the_tables_in_the_docs_are_those_of_the_command():
    page = (DOCS / "methods.md").read_text()
    for group in ("methods", "wrappers"):
        (told,) = listing(group, "markdown")
        assert told in page, f"put the output of `fedbeyond list {group} --format markdown` into docs/methods.md"


def test_one_name_is_told_in_full():
    told = "\n".join(listing("fedsb"))
    assert "Soltany, Pourpanah" in told and "smoothing = 0.1, official 0.01" in told
    assert "fedsb (transform)" in told  # another group has the name too
    assert "momentum = 0.0" in "\n".join(listing("sgd"))


def test_what_is_not_there_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'fedprox'"):
        list(listing("fedprx"))
    with pytest.raises(ConfigError, match="text or markdown"):
        list(listing("methods", "latex"))


def test_there_are_at_least_forty_methods():
    assert len(registry.REGISTRY["methods"]) >= 40
