"""One thread per test process: tensors are small here, and pytest-xdist runs several processes."""

import torch

torch.set_num_threads(1)
