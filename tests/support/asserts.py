"""Compare models."""

import torch

from fedbeyond import tree
from fedbeyond.testing.laws import simulate


def model(method, **options):
    return tree.flatten(simulate(method, **options)[0]["server"]["model"])


def assert_equal(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def assert_close(a, b):
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)
