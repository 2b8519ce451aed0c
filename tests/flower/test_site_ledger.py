"""A site's ledger is on disk before an answer leaves; it survives a crash, and damage to it is an error."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fedbeyond.errors import PolicyError, StorageError
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import answer_limits, site_ledger
from fedbeyond.flower.messages import ASK, EVALUATE
from fedbeyond.flower.policy import Policy
from fedbeyond.flower.shared_config import config_digest
from fedbeyond.flower.site_ledger import HEAD, LEDGER, LOCK, Entry
from fedbeyond.wrappers.privacy import composed_epsilon, epsilon


def entry(number, **changes):
    return Entry("run", "config", 3, ASK, "train", number, f"reply {number}", **changes)


@pytest.fixture
def written(tmp_path):
    """The folder of a ledger with three entries."""
    for number in range(3):
        answer_limits.admit_reply(tmp_path, Policy(), entry(number, noise=20.0, delta=1e-5))
    return tmp_path


def test_a_line_has_all_that_an_auditor_asks_for(written):
    line = json.loads((written / LEDGER).read_text().splitlines()[1])
    assert line.pop("time").endswith("+00:00")
    assert Entry(**line | {"layers": ()}) == entry(1, noise=20.0, delta=1e-5)
    assert site_ledger.read(written) == [entry(number, noise=20.0, delta=1e-5) for number in range(3)]
    assert (written / LEDGER).stat().st_mode & 0o077 == 0


def test_a_last_line_that_was_not_completely_written_belongs_to_no_answer(written):
    with open(written / LEDGER, "ab") as file:
        file.write(b'{"time": "2026-11-18T11')
    assert len(site_ledger.read(written)) == 3
    answer_limits.admit_reply(written, Policy(), entry(3))
    assert [each.round for each in site_ledger.read(written)] == [0, 1, 2, 3]


def test_a_line_counts_from_when_it_is_written(written, monkeypatch):
    """A site that is killed between the two files has an answer more than its head says, and none less."""
    with monkeypatch.context() as patched:
        patched.setattr(site_ledger, "_write_head", lambda folder, content: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answer_limits.admit_reply(written, Policy(), entry(3))
    assert len(site_ledger.read(written)) == 4
    assert answer_limits.admit_reply(written, Policy(), entry(3)) == 4


def cut(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def torn(path):
    path.write_bytes(path.read_bytes()[:-9])


def changed(path):
    path.write_bytes(path.read_bytes().replace(b'"noise": 20.0', b'"noise": 90.0', 1))


def garbled(path):
    path.write_bytes(path.read_bytes() + b"not an entry\n")


def foreign(path):
    path.write_bytes(path.read_bytes() + b'{"time": "", "layers": [], "more": 1}\n')


@pytest.mark.parametrize("damage", [cut, torn, changed, garbled, foreign, lambda path: path.unlink()])
def test_a_damaged_ledger_is_an_error_and_not_an_empty_ledger(written, damage):
    damage(written / LEDGER)
    with pytest.raises(StorageError, match=r"ledger.jsonl is damaged \(.*restore it with ledger.head from a copy"):
        answer_limits.admit_reply(written, Policy(), entry(3))


def test_a_ledger_without_its_head_is_damaged_and_without_both_it_is_new(written):
    (written / HEAD).unlink()
    with pytest.raises(StorageError, match=r"damaged \(ledger.head is missing\)"):
        site_ledger.read(written)
    (written / LEDGER).unlink()
    assert site_ledger.read(written) == [] == site_ledger.read(written / "nowhere")


def test_who_only_reads_creates_nothing(written, tmp_path):
    """Else a look by root would leave a lock that the site cannot open."""
    assert site_ledger.read(tmp_path / "state") == [] == list(site_ledger.snapshot(tmp_path / "state").entries())
    assert not (tmp_path / "state").exists()
    (written / LOCK).unlink()  # as after the ledger was restored from a copy
    assert len(site_ledger.read(written)) == 3 and not (written / LOCK).exists()


def test_who_reads_waits_for_who_writes(written):
    with ThreadPoolExecutor(1) as pool:
        with site_ledger.opened(written) as ledger:
            found = pool.submit(site_ledger.read, written)
            ledger.add(entry(3))
            with pytest.raises(TimeoutError):
                found.result(0.2)
        assert len(found.result(20)) == 4


def test_two_processes_that_answer_at_once_spend_no_more_than_one(tmp_path):
    def answered(number):
        try:
            return answer_limits.admit_reply(tmp_path, Policy(max_rounds=25), entry(number))
        except PolicyError:
            return None

    with ThreadPoolExecutor(8) as pool:  # a lock of a file that is opened anew excludes threads as it does processes
        counts = list(pool.map(answered, range(60)))
    assert sorted(count for count in counts if count) == list(range(1, 26))
    assert len(site_ledger.read(tmp_path)) == 25


def test_noises_compose_as_the_accountant_has_it():
    """Gaussians add up by their inverse squares."""
    assert composed_epsilon({20.0: 30}, 1e-5) == epsilon(20.0, 1e-5, 30)
    mixed = composed_epsilon({20.0: 100, 10.0: 20, 5.0: 3}, 1e-5)
    equal = (100 / 20**2 + 20 / 10**2 + 3 / 5**2) ** -0.5
    assert mixed == pytest.approx(epsilon(equal, 1e-5, 1), rel=1e-4)
    assert composed_epsilon({}, 1e-5) == 0 and composed_epsilon({20.0: 1, 0.0: 1}, 1e-5) == float("inf")


def test_the_digest_of_a_configuration_is_the_servers_choice_and_not_the_sites_data():
    config = Config(train=Train(rounds=5))
    same = [replace(config, data="folder(root='/elsewhere')"), replace(config, train=Train(rounds=9))]
    assert {config_digest(each) for each in same} == {config_digest(config)}
    others = [replace(config, seed=1), replace(config, train=Train(rounds=5, validation=0.2))]
    assert len({config_digest(each) for each in [config, *others]}) == 3


def test_spending_is_described_with_its_limits(written):
    answer_limits.admit_scores(written, Policy(), entry(0)._replace(subject=EVALUATE, run="two", models="m"), 1)
    said = answer_limits.describe_spending(site_ledger.read(written), Policy(max_epsilon=8, max_evaluations=50))
    spent = epsilon(20.0, 1e-5, 3)
    assert said == f"3 replies in 2 runs; epsilon {spent:.3g} of 8 at delta 1e-05; 1 of 50 evaluations of models"
    answer_limits.admit_reply(written, Policy(), entry(7))
    said = answer_limits.describe_spending(site_ledger.read(written), Policy())
    assert "1 replies without noise, for which no epsilon holds; 1 evaluations of models" in said


def test_a_message_waits_for_one_composition_however_many_answers_there_were(tmp_path, monkeypatch):
    composed = []
    monkeypatch.setattr(answer_limits, "composed_epsilon", lambda noises, delta: composed.append(dict(noises)) or 1.0)
    entries = [entry(number, noise=50.0 + number % 7, delta=1e-5) for number in range(700)]
    content = "".join(json.dumps({"time": ""} | each._asdict()) + "\n" for each in entries).encode()
    (tmp_path / LEDGER).write_bytes(content)
    site_ledger._write_head(tmp_path, content)
    assert answer_limits.admit_reply(tmp_path, Policy(max_epsilon=20), entry(700, noise=50.0)) == 701
    assert composed == [{50.0 + place: 100 + (place == 0) for place in range(7)}]


def test_many_noises_compose_to_one_gaussian():
    noises = {50.0 + number: 1 for number in range(40)}
    equal = sum(1 / noise**2 for noise in noises) ** -0.5
    assert composed_epsilon(noises, 1e-5) == pytest.approx(epsilon(equal, 1e-5, 1), rel=1e-6)
