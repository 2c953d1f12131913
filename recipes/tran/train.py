"""Trains the job in $TPRIMAT_JOB with the Hugging Face Trainer, and prints its progress as JSON lines.

One process, or plain data parallelism under torchrun. Nothing is downloaded, and nothing but $TPRIMAT_RUN_DIR is
written to. Settings are reported as the Trainer, the optimizer and the model have them, not as the job asked for them.
"""

import argparse
import os
import sys

RUN_DIR = os.environ.get("TPRIMAT_RUN_DIR", ".")
# Before transformers is imported, which reads them once.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("HF_HOME", os.path.join(RUN_DIR, "huggingface"))
sys.dont_write_bytecode = True  # the recipe's folder is an input of the run: leave nothing in it

import torch
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments

import loop
import model as models
from events import checked, dtype_name, runs_out_of_memory, settings, world
from job import Job, data_parallel_refusals, device_refusals
from tprimat_callback import trainer_callback
from workload import LearningRate, open_dataset


class CountingTrainer(Trainer):
    """Counts the tokens that go through the model."""

    tokens = 0

    def training_step(self, model, inputs, *rest, **more):
        self.tokens += inputs["input_ids"].numel()
        return super().training_step(model, inputs, *rest, **more)

    def tokens_of_step(self):
        counted, self.tokens = self.tokens * self.args.world_size, 0
        return counted


def arguments(job):
    pure_bf16 = job["optimizer"]["state_precision"] == "bf16"
    return TrainingArguments(
        output_dir=RUN_DIR,
        per_device_train_batch_size=job["data"]["micro_batch_size"],
        gradient_accumulation_steps=job["data"]["gradient_accumulation_steps"],
        max_steps=job["train_iters"],
        max_grad_norm=job["optimizer"]["clip_grad"],
        bf16=job["precision"] != "fp32" and not pure_bf16,
        torch_compile=job["compile"],
        torch_compile_mode=(job["compile_mode"] or None) if job["compile"] else None,
        train_sampling_strategy="sequential",
        seed=job["seed"],
        use_cpu=job["vendor"] == "cpu",
        logging_steps=1,
        logging_nan_inf_filter=False,
        dataloader_pin_memory=job["vendor"] != "cpu",
        ddp_find_unused_parameters=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def effective(trainer, args, model, optimizer, rates):
    compiled = hasattr(trainer.model_wrapped, "_orig_mod")
    dtype = dtype_name(next(model.parameters()).dtype)
    found = {"precision": "bf16" if args.bf16 else dtype} | settings(model, optimizer, rates, trainer.train_dataset)
    return found | {
        "micro_batch_size": args.per_device_train_batch_size,
        "global_batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "train_iters": args.max_steps,
        "clip_grad": args.max_grad_norm,
        "data_parallel_size": args.world_size,
        "compile": compiled,
        **({"compile_mode": args.torch_compile_mode or "default"} if compiled else {}),
        "sharding": "none",
        "offload": False,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", help="safetensors to start from instead of random weights")
    weights = parser.parse_args().weights
    job = Job.load()
    job.refuse(
        data_parallel_refusals(job, processes=world()[1], shardings=("", "none"))
        + models.shape_refusals(job)
        + device_refusals(job, torch)
        + [
            (job["offload"], "offload"),
            (job["activation_checkpointing"] and job["sac_frequency"] > 1, "checkpointing only some of the layers"),
        ]
    )
    job.ignore("model.nemo_recipe", "a name that only NeMo knows")
    job.ignore("model.primus_config", "a name that only Primus knows")

    with runs_out_of_memory():
        args = arguments(job)
        model = models.build(job, torch.bfloat16 if job["optimizer"]["state_precision"] == "bf16" else torch.float32)
        count = sum(p.numel() for p in model.parameters())
        if job["precision"] == "fp8":
            models.use_fp8(model, job)
        models.materialise(model, args.device)
        models.load(model, weights, args.device) if weights else models.initialise(model, job, args.device)
        models.checkpoint_layers(model, job)
        rates, dataset = LearningRate(job), open_dataset(job)
        optimizer = models.adamw(model, job, fused=args.device.type == "cuda")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates.factor)
        trainer = CountingTrainer(model=model, args=args, train_dataset=dataset, optimizers=(optimizer, schedule))
        for callback in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)

        def describe(args, model, optimizer):
            return checked(job, effective(trainer, args, model, optimizer, rates), count)

        trainer.add_callback(trainer_callback(describe, tokens=trainer.tokens_of_step))
        trainer.train()
        if torch.distributed.is_initialized():
            loop.leave()


if __name__ == "__main__":
    main()
