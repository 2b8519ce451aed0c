import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.load_profile("steady")


@pytest.fixture
def small() -> dict[str, object]:
    """A run on a sliver of the built-in data: seconds, not minutes."""
    return {"target": "sketch", "data": "styles(share=0.05)", "network": "convnet(width=4)"}
