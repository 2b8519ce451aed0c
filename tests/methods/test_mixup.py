"""mixup: pairs within a batch, blended with their labels."""

import pytest
import torch
from torch.nn import functional as F

from fedbeyond.batch import Batch
from fedbeyond.classifier import Task, read
from fedbeyond.client import Local
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.mixup import blended, mixup
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from support.asserts import assert_equal, model

X, Y = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def local(net=None, seed=0):
    (site, *_) = toy.sites(mixup())
    site.nets = {"model": net or site.nets["model"]}
    return Local(site.reseed(seed, "train"), {"model": read(site.nets["model"])}, {}, sgd())


def drawn(seen, count, alpha, seed=0):
    """What the site's stream gives next: a share and partners."""
    rng = seen.site.reseed(seed, "train").rng
    share = torch._sample_dirichlet(torch.tensor([alpha, alpha], dtype=torch.float64), rng)[0].item()
    return share, torch.randperm(count, generator=rng).tolist()


@pytest.mark.parametrize("views", [0, 2])
def test_a_batch_by_hand(views):
    seen = local()
    batch = Batch(X, Y, tuple(X + 1 + place for place in range(views)))
    ours = blended(0.7)(seen, batch)
    images, labels = [*X, *(x for view in batch.views for x in view)], Y.tolist() * (1 + views)
    share, partners = drawn(seen, len(images), 0.7)
    assert 0.01 < share < 0.99
    mixed = torch.stack([share * images[i] + (1 - share) * images[j] for i, j in enumerate(partners)])
    soft = torch.zeros(len(images), 3)
    for i, j in enumerate(partners):
        soft[i, labels[i]] += share
        soft[i, labels[j]] += 1 - share
    torch.testing.assert_close(ours, F.cross_entropy(seen.net(mixed), soft))


def test_without_blending_it_is_fedavg_to_the_bit():
    assert_equal(model(mixup(alpha=0.0)), model(fedavg()))


def test_shares_are_of_the_beta_distribution():
    seen, shares = local(), []
    for seed in range(400):
        shares.append(drawn(seen, 2, 0.2, seed)[0])
    values = torch.tensor(shares)
    assert abs(float(values.mean()) - 0.5) < 0.06
    assert abs(float(values.var()) - 1 / (4 * (2 * 0.2 + 1))) < 0.02  # of Beta(a, a): 1 / (4 (2 a + 1))


def test_a_pair_of_the_same_image_and_a_batch_of_one_are_as_they_are():
    seen = local()
    seen.net.eval()
    torch.testing.assert_close(blended(0.2)(seen, Batch(X[:1], Y[:1])), F.cross_entropy(seen.net(X[:1]), Y[:1]))


def test_rows_of_a_table_are_blended_too():
    task = Task(("no", "yes"), (5,), registry.make_one("networks", "mlp"))
    seen = local(task.network(task))
    assert bool(torch.isfinite(blended(0.2)(seen, Batch(torch.rand(4, 5), torch.arange(4) % 2))))


def test_a_negative_alpha_is_refused():
    with pytest.raises(ConfigError, match="alpha=-1 is not valid"):
        registry.build("mixup(alpha=-1)")
