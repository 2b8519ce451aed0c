"""JiGen: the orders, the tiles, and what is learnt from which images."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.batch import Batch
from fedbeyond.classifier import Task, read
from fedbeyond.client import Local
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.jigen import chosen, jigen, puzzled, scramble
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.asserts import assert_equal, model

X, Y = torch.rand(10, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(10) % 3


def local(method):
    (site, *_) = toy.sites(method)
    received = {name: read(site.nets[name]) for name in ("model", "jigsaw")}
    return Local(site.reseed(0, "train"), received, {}, sgd(), ("jigsaw",))


def test_orders_are_fixed_differ_and_lie_far_apart():
    orders = chosen(30)
    assert orders.shape == (31, 9) and orders[0].tolist() == list(range(9))
    assert all(sorted(order) == list(range(9)) for order in orders.tolist())
    apart = (orders[:, None] != orders[None]).sum(2)
    assert int(apart[~torch.eye(31, dtype=torch.bool)].min()) >= 7
    assert int((orders[1] != orders[0]).sum()) == 9  # the first moves every tile
    assert torch.equal(chosen(9), orders[:10])  # fewer are the first of more
    chosen.cache_clear()
    assert torch.equal(chosen(30), orders)


def test_tiles_by_hand():
    image = torch.arange(36.0).view(1, 1, 6, 6)
    order = torch.tensor([[8, 1, 2, 3, 4, 5, 6, 7, 0]])  # first and last tile change places
    moved = scramble(image, order)
    assert moved[0, 0, :2, :2].tolist() == [[28, 29], [34, 35]] and moved[0, 0, 4:, 4:].tolist() == [[0, 1], [6, 7]]
    rest = torch.ones(6, 6, dtype=torch.bool)
    rest[:2, :2] = rest[4:, 4:] = False
    assert torch.equal(moved[0, 0][rest], image[0, 0][rest])


@pytest.mark.parametrize(("high", "wide"), [(3, 3), (6, 9), (7, 8), (32, 64), (5, 222)])
def test_any_size_can_be_cut_and_what_is_left_over_stays(high, wide):
    x = torch.rand(31, 2, high, wide)
    moved = scramble(x, chosen(30))
    assert moved.shape == x.shape and torch.equal(moved[0], x[0])
    assert torch.equal(moved.flatten(1).sort(1).values, x.flatten(1).sort(1).values)  # nothing is lost
    inner = (3 * (high // 3), 3 * (wide // 3))
    assert torch.equal(moved[:, :, inner[0] :], x[:, :, inner[0] :])
    assert torch.equal(moved[:, :, :, inner[1] :], x[:, :, :, inner[1] :])
    back = torch.argsort(chosen(30), 1)
    assert torch.equal(scramble(moved, back), x)


def test_a_batch_by_hand():
    method = jigen(whole=0.5)
    seen = local(method)
    ours = puzzled(0.7, 30, 0.5)(seen, Batch(X, Y))
    rng = seen.site.reseed(0, "train").rng
    drawn, whole = torch.randint(1, 31, (10,), generator=rng), torch.rand(10, generator=rng) < 0.5
    assert 0 < int(whole.sum()) < 10
    images, order = [], []
    for x, number, intact in zip(X, drawn.tolist(), whole.tolist(), strict=True):
        order.append(0 if intact else number)
        tiles = [x[:, 2 * (t // 3) : 2 * (t // 3) + 2, 2 * (t % 3) : 2 * (t % 3) + 2] for t in range(9)]
        placed = [tiles[t] for t in chosen(30)[order[-1]].tolist()]
        images.append(torch.cat([torch.cat(placed[row : row + 3], 2) for row in (0, 3, 6)], 1))
    h = seen.net.features(torch.stack(images))
    order = torch.tensor(order)
    error = F.cross_entropy(seen.net.head(h)[whole], Y[whole])
    torch.testing.assert_close(ours, error + 0.7 * F.cross_entropy(seen.along["jigsaw"](h), order))


def test_nine_of_ten_images_stay_whole():
    method = jigen()
    seen, told = local(method), []
    seen.along["jigsaw"].register_forward_hook(lambda part, given, out: told.append(len(out)))
    rng = seen.site.rng
    share = torch.stack([(torch.rand(2000, generator=rng) >= 0.9).float() for _ in range(2)]).mean()
    assert abs(float(share) - 0.1) < 0.02
    puzzled(0.7, 30, 0.9)(seen, Batch(X, Y, (X + 1,)))
    assert told == [20]  # views are pieced together too


def test_without_its_parts_it_is_fedavg_to_the_bit():
    assert_equal(model(jigen(weight=0.0, whole=1.0)), model(fedavg()))


def test_a_batch_without_a_whole_image_teaches_the_order_alone():
    seen = local(jigen())
    loss = puzzled(1.0, 30, 0.0)(seen, Batch(X[:2], Y[:2]))
    loss.backward()
    assert bool(torch.isfinite(loss)) and seen.net.head.weight.grad is None
    assert float(seen.net.body[0].weight.grad.abs().sum()) > 0


def test_the_jigsaw_head_is_shared_and_learns():
    method = jigen(whole=0.5)
    before, after = toy.shared(method)["jigsaw"], simulate(method)[0]["server"]["jigsaw"]
    assert before["params"]["weight"].shape == (31, 4)
    gap = tree.sub(after["params"], before["params"])
    assert float(tree.dot(gap, gap)) > 0


def test_the_order_can_be_learnt():
    torch.manual_seed(0)
    net, head = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU()), nn.Linear(64, 4)
    step = torch.optim.Adam([*net.parameters(), *head.parameters()], 0.01)
    x = torch.arange(36.0).view(1, 1, 6, 6).div(36).expand(64, 1, 6, 6) + 0.01 * torch.randn(64, 1, 6, 6)
    order = torch.arange(64) % 4
    for _ in range(60):
        loss = F.cross_entropy(head(net(scramble(x, chosen(3)[order]))), order)
        step.zero_grad(), loss.backward(), step.step()
    assert float(loss.detach()) < 0.1


def test_what_cannot_be_cut_is_refused():
    for shape, complaint in (((3, 2, 8), "3 x 3 tiles, these have 2 x 8 pixels"), ((5,), "jigen needs images")):
        task = Task(("no", "yes"), shape, registry.make_one("networks", "convnet"))
        with pytest.raises(ConfigError, match=complaint):
            jigen().networks(task)
    with pytest.raises(ConfigError, match="orders=0 is not valid"):
        registry.build("jigen(orders=0)")
