"""apex's FusedAdam decays weights as AdamW does."""

from torch.optim import SGD as FusedSGD
from torch.optim import AdamW as FusedAdam

__all__ = ["FusedAdam", "FusedSGD"]
