"""Random streams of a site."""

import torch

from fedbeyond.site import forked_rng


def test_forking_the_random_state_does_not_initialise_cuda(monkeypatch):
    def initialise(*given):
        raise AssertionError("asked a GPU for its random state")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", initialise)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with forked_rng():
        torch.rand(5)
    assert torch.equal(before, torch.get_rng_state())
