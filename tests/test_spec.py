"""Parts are spelled the same on the command line, in files and in tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbeyond.errors import ConfigError
from fedbeyond.spec import Part, format_spec, from_table, parse, to_table

word = st.from_regex(r"[a-z][a-z_]{0,6}", fullmatch=True).filter(
    lambda w: w not in ("none", "true", "false", "nan", "inf", "name", "preset")
)
text = st.text(st.characters(codec="ascii", exclude_categories=("C",)), max_size=8)
value = st.one_of(
    st.booleans(), st.none(), st.integers(), st.floats(allow_nan=False), word, st.lists(st.integers()), st.lists(text)
)
parts = st.builds(Part, word, st.just("default") | word, st.dictionaries(word, value, max_size=3))


@given(st.lists(parts, min_size=1, max_size=3))
def test_what_is_spelled_can_be_read(some):
    assert parse(format_spec(tuple(some))) == tuple(some)


@given(st.lists(parts, min_size=1, max_size=3, unique_by=lambda part: part.name))
def test_a_table_and_a_spelling_say_the_same(some):
    first, *others = some
    options = [part.name for part in others]
    if not {*first.options} & {*options}:  # a table has one key for an option and a part of the same name
        assert from_table(to_table(format_spec(tuple(some)))) == format_spec(tuple(some))


@given(text.filter(str.strip))
def test_any_text_can_be_an_option(some):
    assert parse(format_spec((Part("a", options={"b": some}),)))[0].options["b"] == some


def test_spelling_is_tolerant_of_spaces_and_quotes():
    spelled = parse("fedprox( mu = 0.1 ) + ga:paper(metric='accuracy', step=1e-3)")
    assert spelled[0] == Part("fedprox", options={"mu": 0.1})
    assert spelled[1] == Part("ga", "paper", {"metric": "accuracy", "step": 0.001})


@pytest.mark.parametrize("bad", ["", "fedavg+", "+ga", "fedprox(mu)", "fedprox(mu=0.1", "fed avg", "fedavg:"])
def test_what_cannot_be_read_is_named(bad):
    with pytest.raises(ConfigError, match="cannot read"):
        parse(bad)
