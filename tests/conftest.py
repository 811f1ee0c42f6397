"""What all tests share: single-threaded torch."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    # Small tensors gain nothing from a second thread, and several test processes lose much.
    torch.set_num_threads(1)
