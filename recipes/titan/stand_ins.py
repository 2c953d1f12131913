"""Lets torchtitan be imported without packages that it loads but that no run of this recipe uses.

torchtitan imports `datasets` for text from the hub and TensorBoard's writer for its files, whether or not they are
asked for. Where they are installed, they are what is imported.
"""

import importlib.machinery
import importlib.util
import sys
import types

NEEDLESS = {
    "datasets": {"datasets": ("Dataset", "load_dataset"), "datasets.distributed": ("split_dataset_by_node",)},
    "tensorboard": {"torch.utils.tensorboard": ("SummaryWriter",)},
}


def absent(package, name):
    class Absent:
        def __new__(cls, *_, **__):
            raise ImportError(f"{name} needs the Python package {package}, which is not installed")

    return Absent


def install():
    """Stands in for what is not there; returns the packages."""
    missing = [package for package in NEEDLESS if importlib.util.find_spec(package) is None]
    for package in missing:
        for name, members in NEEDLESS[package].items():
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            for member in members:
                setattr(module, member, absent(package, f"{name}.{member}"))
            sys.modules[name] = module
    return missing
