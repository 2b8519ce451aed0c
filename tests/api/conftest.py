import pytest
import torch

import fedbeyond as fb


def tiny(shift=0, size=8, number=30):
    """Three domains of two classes: bright or dark squares, with noise."""
    rng, images = torch.Generator().manual_seed(7 + shift), {}
    for place, domain in enumerate(("east", "north", "west")):
        labels = torch.arange(number) % 2
        noise = torch.randint(0, 90, (number, 3, size, size), generator=rng)
        images[domain] = (noise + 100 * labels[:, None, None, None] + 20 * place).to(torch.uint8), labels
    return fb.Dataset(("dark", "bright"), images)


@pytest.fixture
def data():
    return tiny()


@pytest.fixture
def small():
    """The options of a run that takes a fraction of a second."""
    return {"target": "west", "rounds": 3, "network": fb.networks.convnet(2), "batch_size": 8, "progress": False}


@pytest.fixture(autouse=True)
def forget_registrations():
    """Remove what a test registers in this process."""
    from fedbeyond.experiment import code, registry

    before = {group: dict(names) for group, names in registry.REGISTRY.items()}
    yield
    for group, names in registry.REGISTRY.items():
        names.clear()
        names.update(before[group])
    code.CODE.clear()
