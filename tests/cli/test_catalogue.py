"""What `fedbeyond list` says is what the code does."""

import pydoc

import pytest

import fedbeyond as fb
from fedbeyond import _factory
from fedbeyond.cli.catalogue import HEAD, details, listing, row
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
    printed = dict(zip(HEAD, row("methods", "scaffold"), strict=True))
    assert printed["sent"] == "model, control" and printed["private state"] == "control"
    assert (printed["paper"], printed["year"], printed["wrappers"]) == ("Karimireddy et al., ICML", "2020", "all")
    printed = dict(zip(HEAD, row("methods", "feddag"), strict=True))
    assert printed["extra phases"] == "sha_score" and printed["wrappers"].startswith("all except ga, sha")
    assert printed["network"] == "features"
    for method, network in (("fedavg", "logits"), ("fedgca", "maps"), ("rsc", "pooled"), ("ccst", "stages")):
        assert dict(zip(HEAD, row("methods", method), strict=True))["network"] == network
    assert dict(zip(HEAD, row("wrappers", "mixstyle"), strict=True))["network"] == "stages"
    assert row("methods", "erm")[3] == "all images and labels"
    assert row("wrappers", "ga")[3] == "ga_received (scalars), ga_trained (scalars)"
    assert dict(zip(HEAD, row("methods", "fedavg"), strict=True))["private state"] == "-"


def test_a_table_runs_no_round(monkeypatch, caplog):
    monkeypatch.delattr("fedbeyond.engine.simulator.Simulator._answer")
    monkeypatch.delattr("fedbeyond.client.answer")
    assert len(list(listing("methods"))) == len(list(listing("wrappers"))) == 1 and not caplog.records


def test_the_tables_in_the_docs_are_those_of_the_command():
    page = (DOCS / "methods.md").read_text()
    for group in ("methods", "wrappers"):
        (printed,) = listing(group, "markdown")
        assert printed in page, f"put the output of `fedbeyond list {group} --format markdown` into docs/methods.md"


def test_one_name_is_told_in_full():
    printed = "\n".join(listing("fedsb"))
    assert "Soltany, Pourpanah" in printed and "smoothing = 0.1  label smoothing" in printed
    assert "fedsb (transform)" in printed  # another group has the name too
    assert "momentum = 0.0" in "\n".join(listing("sgd"))


def test_what_is_not_there_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'fedprox'"):
        list(listing("fedprx"))
    with pytest.raises(ConfigError, match="text or markdown"):
        list(listing("methods", "latex"))


def test_there_are_at_least_forty_methods():
    assert len(registry.REGISTRY["methods"]) >= 40


PARTS_OF_ALL = [(group, name) for group, names in registry.REGISTRY.items() for name in names]


@pytest.mark.parametrize(("group", "name"), PARTS_OF_ALL)
def test_every_option_has_a_short_meaning_that_is_printed(group, name):
    factory = registry.find(group, name)
    meanings = _factory.meanings(factory)
    assert list(meanings) == list(_factory.options(factory))
    printed = " ".join(" ".join(details(group, name)).split())
    for option, meaning in meanings.items():
        assert 0 < len(meaning) <= 90 and meaning == meaning.strip().rstrip("."), option
        assert not meaning[0].isupper() or meaning[1].isupper(), option  # lower case, or an abbreviation
        assert f" {option} = " in printed and " ".join(meaning.split()) in printed


def test_meanings_do_not_change_what_an_option_accepts():
    with pytest.raises(ConfigError, match=r"mu=-1 is not valid: .* greater than or equal to 0"):
        registry.build("fedprox(mu=-1)")
    with pytest.raises(ConfigError, match=r"decay=2 is not valid: .* less than 1"):
        registry.build("ndag(decay=2)")


def test_options_are_aligned_and_fit_the_terminal(monkeypatch):
    for columns in (60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        for name in ("fedadg", "mmd", "ga", "fedsb"):
            lines = list(listing(name))
            assert max(map(len, lines)) <= columns
    monkeypatch.setenv("COLUMNS", "80")
    *_, smoothing, budget, rest, fresh = list(details("methods", "fedsb"))
    assert smoothing == "    smoothing = 0.1  label smoothing, epsilon in Eqs. 1-3 [official: 0.01]"
    assert budget == "    budget = 30      batches a round at every site; none: all its images"
    assert rest == "                     [official: 45]"
    assert fresh == "    fresh = true     draw other images in each round [official: false]"


def test_words_to_choose_from_are_printed():
    about = _factory.described(registry.find("methods", "fedadg"))
    assert "(toward, away, none) [paper: away, official-vlcs: none]" in about["generator_loss"]
    assert about["classify"] == "epochs of cross-entropy only, E0 [official-vlcs: 5]"


def test_help_of_a_method_and_of_a_wrapper_gives_the_meanings():
    assert fb.fedprox.__doc__.splitlines()[1:] == [
        "",
        "Args:",
        "    mu: strength of the proximal term, mu in Eq. 2 [official: 0.1]",
        "    preset: a named set of options: default, paper, official",
    ]
    text = pydoc.render_doc(fb.ga, renderer=pydoc.plaintext)
    assert "ga(method: fedbeyond._method.Method, step: float = 0.05, " in text
    assert "        method: the method to wrap\n        step: largest change of a weight in a round, d in Eq. 3" in text
    assert "Annotated" not in text and "preset: name of the network" in fb.networks.timm.__doc__
    assert fb.networks.mlp.__doc__.endswith("dropout: probability of dropping a feature in training")


def test_a_plugin_needs_no_meanings_and_no_types_at_run_time(monkeypatch):
    scope: dict = {}
    exec("from __future__ import annotations\ndef bare(method: Unknown, step: float = 0.5): 'Do.'", scope)
    monkeypatch.setitem(registry.REGISTRY["schedules"], "bare", scope["bare"])
    assert _factory.meanings(scope["bare"]) == {} and list(details("schedules", "bare"))[-1] == "    step = 0.5"
    assert _factory.exposed(scope["bare"]).__doc__ == "Do.\n\nArgs:\n    method: the method to wrap"
