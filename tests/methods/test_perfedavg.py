"""Per-FedAvg: steps after a step, by hand and on halves of batches."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from pytest import approx
from torch.nn import functional as F

from fedbeyond.batch import Batch
from fedbeyond.classifier import read
from fedbeyond.client import Local, descend
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.perfedavg import after_a_step, halves, perfedavg
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from support.asserts import model
from support.by_hand import play_rounds, slope, weight


def test_two_rounds_by_hand():
    alpha, lr, w = 0.7, 0.5, 0.0
    for state in play_rounds(perfedavg(alpha, optimizer=sgd(lr)), 2, epochs=2):
        ends = []
        for site in ("a", "b"):
            v = w
            for _ in range(2):
                v -= lr * slope(v - alpha * slope(v, site), site)  # at first order: no second derivative
            ends.append(v)
        w = sum(ends) / 2
        assert weight(state) == approx(w, abs=1e-6)


def a_site():
    method = perfedavg()
    site = toy.sites(method)[0]
    return site, Local(site, {"model": read(site.nets["model"])}, {}, sgd(0.1))


def test_a_step_on_two_halves_by_hand():
    site, local = a_site()
    batch = next(iter(site.batches()))
    before, ahead = deepcopy(local.net), deepcopy(local.net)
    F.cross_entropy(ahead(batch.x[:4]), batch.y[:4]).backward()
    with torch.no_grad():
        for param in ahead.parameters():
            param -= 0.3 * param.grad
    statistics = {name: buffer.clone() for name, buffer in ahead.named_buffers()}  # of the first half, at w
    ahead.zero_grad()
    F.cross_entropy(ahead(batch.x[4:]), batch.y[4:]).backward()
    descend(local.optimizer, lambda: after_a_step(0.3)(local, batch), local.net)
    pairs = zip(before.parameters(), ahead.parameters(), local.net.parameters(), strict=True)
    for old, moved, new in pairs:
        torch.testing.assert_close(new.detach(), old.detach() - 0.1 * moved.grad)
    for name, buffer in local.net.named_buffers():
        torch.testing.assert_close(buffer, statistics[name])


def test_without_a_step_it_is_fedavg_on_second_halves_to_the_bit():
    def cut(batch, rng):
        return halves(batch)[1]

    ours, theirs = model(perfedavg(alpha=0.0)), model(replace(fedavg("uniform"), augment=cut))
    learnt = [name for name in ours if name.startswith("params/")]
    assert learnt and all(torch.equal(ours[name], theirs[name]) for name in learnt)


def test_halves_share_out_images_labels_and_views():
    x, y = torch.arange(5.0)[:, None], torch.arange(5)
    first, second = halves(Batch(x, y, (x + 10, x + 20)))
    assert [part.x[:, 0].tolist() for part in (first, second)] == [[0, 1], [2, 3, 4]]
    assert [part.y.tolist() for part in (first, second)] == [[0, 1], [2, 3, 4]]
    assert [view[:, 0].tolist() for view in second.views] == [[12, 13, 14], [22, 23, 24]]
    assert halves(Batch(x, y))[0].views == ()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_tiny_batch_is_both_halves(size):
    batch = Batch(torch.rand(size, 3, 6, 6), torch.zeros(size, dtype=torch.long))
    assert halves(batch) == (batch, batch)


def test_alpha_below_zero_is_refused():
    with pytest.raises(ConfigError, match="is not valid"):
        registry.build("perfedavg(alpha=-0.1)")
