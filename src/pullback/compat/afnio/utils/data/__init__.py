"""Datasets, samplers and loaders."""

from pullback.compat.afnio.utils.data import dataloader, dataset, sampler
from pullback.compat.afnio.utils.data.dataloader import *
from pullback.compat.afnio.utils.data.dataset import *
from pullback.compat.afnio.utils.data.sampler import *

__all__ = sorted([*dataloader.__all__, *dataset.__all__, *sampler.__all__])
