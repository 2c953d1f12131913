"""The training loop of our own data-parallel programs; how a micro-step and an update are done is theirs."""

import os
import sys

import torch
import torch.distributed as dist

from events import world
from workload import micro_batch


def join(job, gpu_backend="nccl"):
    """Joins the process group that torchrun describes, or makes one of a single process; this rank's device."""
    rank, processes, local_rank = world()
    if job["vendor"] == "cpu":
        device, backend = torch.device("cpu"), "gloo"
    else:
        device, backend = torch.device("cuda", local_rank), gpu_backend
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:  # a process alone: libraries look for torchrun's variables all the same, but no port is needed
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        dist.init_process_group(backend, store=dist.HashStore(), rank=rank, world_size=processes)
    torch.manual_seed(job["seed"])
    return device


def leave():
    """Ends the process once all ranks are done, without tearing the interpreter down."""
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may outlive the group, and then abort an orderly exit


def run(job, events, dataset, device, micro_step, update):
    """All steps, then the `end` event.

    `micro_step(batch, last)` runs forward and backward and returns its mean loss; `update(step)` applies the
    gradients and returns (learning rate, gradient norm before clipping).
    """
    rank, processes, _ = world()
    rows, accumulation = job["data"]["micro_batch_size"], job["data"]["gradient_accumulation_steps"]
    for step in range(1, job["train_iters"] + 1):
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # losses, tokens
        for number in range(accumulation):
            batch = micro_batch(dataset, (step - 1) * accumulation + number, rows, rank, processes)
            sums[1] += batch["input_ids"].numel()
            batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
            sums[0] += micro_step(batch, number == accumulation - 1).detach()
        rate, norm = update(step)
        dist.all_reduce(sums)
        loss, tokens = sums.tolist()
        loss /= accumulation * processes
        events.step(step, loss=loss, tokens=int(tokens), learning_rate=rate, grad_norm=norm)
        if events.found_nan:
            break
    events.end()
