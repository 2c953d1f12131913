"""Stands in for Transformer Engine where nothing of it is called: every name in it is a class that cannot be made."""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

import torch

__version__ = "2.1.0"
ROOTS = ("transformer_engine", "transformer_engine_torch")
# Where Megatron-LM finds these missing it takes torch's optimizer and its own functions.
MISSING = ("optimizers", "_SplitAlongDim", "FusedRoPEFunc", "apply_rotary_pos_emb")


class Absent(type):
    """Names within a name, for those who ask for a constant of it."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return made(name)


def made(name):
    def refuse(*_, **__):
        raise RuntimeError(f"Transformer Engine's {name} was called, and only a stand-in is here")

    return Absent(name, (), {"__init__": refuse})


def get_cpu_offload_context(enabled=False, *_, **__):
    """Megatron asks at every start; without offloading the real one does nothing either."""
    if enabled:
        raise RuntimeError("Transformer Engine's offloading was asked for, and only a stand-in is here")
    return contextlib.nullcontext(), lambda tensor: tensor


class Names(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") or name in MISSING:
            raise AttributeError(name)
        setattr(self, name, WORKS.get(name) or made(name))
        return self.__dict__[name]


def rms_norm(hidden_size, eps=1e-5, zero_centered_gamma=False, **_):
    """Megatron-LM takes its last norm from Transformer Engine, if that is there, whatever the layers are made of."""
    if zero_centered_gamma:
        raise RuntimeError("Transformer Engine's RMSNorm with weights around 0 was asked for, and only torch's is here")
    return torch.nn.RMSNorm(hidden_size, eps)


WORKS = {"get_cpu_offload_context": get_cpu_offload_context, "RMSNorm": rms_norm}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ROOTS and name.split(".")[-1] not in MISSING:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Names(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
