"""Stands in for CUDA and NCCL, so that programs written for GPUs train on a CPU over gloo.

What is real: a framework's arguments, configuration, data, schedule, network, losses and log lines. What is not: kernels,
streams, memory figures and any speed.

    install("cuda")   torch.cuda answers as a host with $TPRIMAT_STAND_IN_DEVICES devices would; all memory is the CPU's
    install("gloo")   only NCCL is replaced, for frameworks that know how to use a CPU (DeepSpeed)
    install("cpu")    the same, and torch's CPU answers what torchtitan asks of a device
"""

import contextlib
import importlib
import os
import time
import types

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what it compiles for CUDA cannot run here

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.overrides import TorchFunctionMode

GIB = 1 << 30


def install(what):
    use_gloo()
    if what == "cuda":
        use_cpu_memory()
        answer_as_cuda()
    elif what == "cpu":
        answer_as_device()
    else:
        build_nothing()


def answer_as_device():
    """torchtitan runs on whatever device torch has, and asks it for what a CPU does not count. One check of the recipe's
    program is for a vendor's torch, which this one is not."""
    cpu, peaks = torch.cpu, ("active_bytes", "reserved_bytes")
    cpu.get_device_name = lambda *_: "stand-in on a CPU"
    cpu.get_device_properties = lambda *_: types.SimpleNamespace(name="stand-in on a CPU", total_memory=80 * GIB)
    cpu.memory_stats = lambda *_: {f"{kind}.all.peak": GIB for kind in peaks} | {"num_alloc_retries": 0, "num_ooms": 0}
    cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *_: None
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cuda.is_available, torch.cuda.is_current_stream_capturing = lambda: True, lambda: False
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # below, it would multiply by one expert after the other
    histogram = torch.histc  # a CPU counts no integers
    torch.histc = lambda values, *args, **kwargs: histogram(values.float(), *args, **kwargs).to(values.dtype)
    kernels = importlib.import_module("torchtitan.models.moe.kernels")
    kernels.fill_indices_wrapper = kernels.fill_indices_cpu


def build_nothing():
    """On a CPU DeepSpeed compiles a collective of its own when it starts, and does without where there is none. What it cannot
    build there is an error of another kind than the one that Megatron-DeepSpeed expects of a missing operation."""

    def missing(*_, **__):
        raise TypeError("not on a CPU")

    importlib.import_module("deepspeed.ops.op_builder.cpu.no_impl").NotImplementedBuilder.load = missing
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    cpu = importlib.import_module("deepspeed.accelerator.cpu_accelerator").CPU_Accelerator
    cpu.Stream = property(lambda accelerator: Stream)  # checkpointed activations travel on one
    cpu.stream = lambda accelerator, stream: contextlib.nullcontext()


# --- devices -----------------------------------------------------------------------------------------------------------


def is_cuda(device):
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.split(":")[0] == "cuda"


class OnCpu(TorchFunctionMode):
    """Every function of torch that is told a CUDA device is told the CPU."""

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if is_cuda(device) or (isinstance(device, int) and not isinstance(device, bool)):
            kwargs["device"] = "cpu"
        if getattr(function, "__name__", "") == "to":
            args = tuple("cpu" if is_cuda(a) or (at == 1 and type(a) is int) else a for at, a in enumerate(args))
        return function(*args, **kwargs)


def use_cpu_memory():
    def itself(value, *_, **__):
        return value

    torch.Tensor.cuda = torch.nn.Module.cuda = torch.Tensor.pin_memory = itself
    torch.Tensor.record_stream = lambda tensor, stream: None
    torch.Tensor.type = typed_as_cuda(torch.Tensor.type)
    torch.nn.Module.to = moved_to_cpu(torch.nn.Module.to)
    torch.nn.Module.to_empty = moved_to_cpu(torch.nn.Module.to_empty)
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Byte", "Bool"):
        setattr(torch.cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    loader = torch.utils.data.DataLoader.__init__

    def load_here(self, *args, **kwargs):
        loader(self, *args, **kwargs | {"pin_memory": False, "num_workers": 0, "persistent_workers": False, "prefetch_factor": None})

    torch.utils.data.DataLoader.__init__ = load_here
    OnCpu().__enter__()


def moved_to_cpu(method):
    def call(module, *args, **kwargs):
        if is_cuda(kwargs.get("device")) or isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        return method(module, *("cpu" if is_cuda(a) or type(a) is int else a for a in args), **kwargs)

    return call


def typed_as_cuda(method):
    """Megatron sorts gradients by the names of their types, and knows those of CUDA."""

    def call(tensor, *args, **kwargs):
        if args and isinstance(args[0], str):
            args = (args[0].replace("torch.cuda.", "torch."), *args[1:])
        found = method(tensor, *args, **kwargs)
        return f"torch.cuda.{found.rpartition('.')[2]}" if isinstance(found, str) else found

    return call


# --- torch.cuda --------------------------------------------------------------------------------------------------------


class Event:
    """Records when it was reached; on a CPU work is done when a call returns."""

    def __init__(self, *_, **__):
        self.at = 0.0

    def record(self, *_):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3

    def query(self):
        return True

    def wait(self, *_):
        pass

    synchronize = wait


class Stream(contextlib.nullcontext):
    device, cuda_stream = torch.device("cpu"), 0

    def __init__(self, *_, **__):
        super().__init__(self)

    def record_event(self, event=None):
        return event or Event()

    def wait_stream(self, *_):
        pass

    wait_event = synchronize = wait_stream


class Generators:
    """One generator for all devices: the CPU's."""

    def __getitem__(self, _):
        return torch.default_generator


def answer_as_cuda():
    cuda, count = torch.cuda, int(os.environ.get("TPRIMAT_STAND_IN_DEVICES", "2"))

    def always(value):
        return lambda *_, **__: value

    properties = types.SimpleNamespace(
        name="stand-in on a CPU", major=9, minor=0, total_memory=80 * GIB, multi_processor_count=132, gcnArchName="gfx942"
    )
    answers = {
        "is_available": True,
        "is_initialized": True,
        "device_count": count,
        "get_device_name": properties.name,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_properties": properties,
        "mem_get_info": (60 * GIB, 80 * GIB),
        "is_current_stream_capturing": False,
        "is_bf16_supported": True,
        "get_rng_state_all": [],
    }
    for name, value in answers.items():
        setattr(cuda, name, always(value))
    for name in ("allocated", "reserved", "cached"):
        setattr(cuda, f"memory_{name}", always(GIB))
        setattr(cuda, f"max_memory_{name}", always(GIB))
    kinds = ("allocation", "reserved_bytes", "allocated_bytes", "active_bytes", "segment", "active")
    cuda.memory_stats = always({f"{kind}.all.{of}": GIB for kind in kinds for of in ("current", "peak")} | {"num_alloc_retries": 0, "num_ooms": 0})
    nothing = "set_device synchronize empty_cache init _lazy_init reset_peak_memory_stats reset_max_memory_allocated set_stream ipc_collect"
    for name in nothing.split():
        setattr(cuda, name, always(None))
    cuda.current_device = always(torch.device("cpu"))
    cuda._lazy_call = lambda call, **_: call()
    cuda.Event, cuda.Stream, cuda.default_generators = Event, Stream, Generators()
    cuda.current_stream = cuda.default_stream = Stream
    cuda.stream = cuda.device = lambda *_: contextlib.nullcontext()
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda *_, **__: torch.get_rng_state()
        module.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
        module.manual_seed = module.manual_seed_all = lambda seed: torch.default_generator.manual_seed(seed)
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, always(None))
    torch.accelerator.current_device_index = always(0)
    # bitsandbytes asks while it is imported, and would look for a real device's properties.
    importlib.import_module("torch.utils._triton").has_triton = always(False)


# --- NCCL --------------------------------------------------------------------------------------------------------------


class Done:
    """The handle of a collective that has ended."""

    def wait(self, *_):
        return True

    is_completed = is_success = wait


class Times:
    """A sum of what was multiplied before, which FSDP2 asks NCCL for."""

    def __init__(self, factor):
        self.factor = factor


def use_gloo():
    """Groups are gloo's, which has neither averages nor a reduce-scatter of one tensor. A collective has ended when its call
    returns: who coalesces several waits for a handle of the manager, which knows of none."""
    start, group, reduce_all, wait_for_all = c10d.init_process_group, c10d.new_group, c10d.all_reduce, c10d.barrier
    gather, exchange = c10d.all_gather_into_tensor, c10d.all_to_all_single

    def init_process_group(backend=None, *args, **kwargs):
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device_id", "pg_options")}
        return start("gloo", *args, **kwargs)

    def new_group(ranks=None, timeout=None, backend=None, pg_options=None, **kwargs):
        kwargs.pop("device_id", None)
        return group(ranks, timeout, "gloo", None, **kwargs)

    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if isinstance(op, Times):
            tensor.mul_(op.factor)
            op = dist.ReduceOp.SUM
        averages = op == dist.ReduceOp.AVG
        reduce_all(tensor, dist.ReduceOp.SUM if averages else op, group)
        if averages:
            tensor.div_(dist.get_world_size(group))
        return Done() if async_op else None

    def reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
        whole = input.float() if input.dtype.itemsize == 2 else input.clone()
        all_reduce(whole, op, group)
        output.copy_(whole.view(dist.get_world_size(group), -1)[dist.get_rank(group)].view_as(output))
        return Done() if async_op else None

    def all_gather_into_tensor(output, input, group=None, async_op=False):
        gather(output, input, group)
        return Done() if async_op else None

    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
        splits = (list(map(int, sizes)) if sizes is not None else None for sizes in (output_split_sizes, input_split_sizes))
        return exchange(output, input, *splits, group, async_op)  # Megatron makes lists of those that lie on a device

    def barrier(group=None, async_op=False, device_ids=None):
        return wait_for_all(group, async_op)

    @contextlib.contextmanager
    def coalescing_manager(*_, **__):
        yield Done()

    replaced = {
        "init_process_group": init_process_group,
        "new_group": new_group,
        "all_reduce": all_reduce,
        "reduce_scatter_tensor": reduce_scatter_tensor,
        "_reduce_scatter_base": reduce_scatter_tensor,
        "_coalescing_manager": coalescing_manager,
        "_make_nccl_premul_sum": Times,
        "all_gather_into_tensor": all_gather_into_tensor,
        "_all_gather_base": all_gather_into_tensor,
        "all_to_all_single": all_to_all_single,
        "barrier": barrier,
    }
    for name, function in replaced.items():
        setattr(dist, name, function)
        setattr(c10d, name, function)
