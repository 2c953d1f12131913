"""Megatron-DeepSpeed imports the name; under DeepSpeed norms and clipping are DeepSpeed's own."""


def multi_tensor_applier(*_):
    raise NotImplementedError("the stand-in for apex has no multi-tensor functions")
