"""Tests of recipes/lib that need no training: python library.py

transformer_engine and lightning are stand-ins made here: what is tested is what our code does with them.
"""

import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

LIB = Path(__file__).resolve().parents[2] / "recipes" / "lib"
sys.path.insert(0, str(LIB))
sys.dont_write_bytecode = True

import torch
import transformers

import model as models
import parity
import tprimat_callback as callback
from job import Fields, Job
from workload import micro_batch, open_dataset


def job(**changes):
    return Job(json.loads(json.dumps(parity.JOB | {"model": parity.MODELS["llama"]})) | changes)


def printed(action):
    """The events that `action` prints, and the exit code it ends with."""
    out, code = io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            action()
        except SystemExit as ended:
            code = ended.code
    return [json.loads(line) for line in out.getvalue().splitlines()], code


class JobTests(unittest.TestCase):
    def read_all(self, group):
        for value in group.values():
            if isinstance(value, Fields):
                self.read_all(value)

    def test_what_nobody_reads_ends_the_run(self):
        events, code = printed(job().refuse_unread)
        self.assertEqual((code, events[0]["event"], events[0]["class"]), (2, "error", "launch"))
        self.assertIn("optimizer.learning_rate = 0.003", events[0]["message"])
        self.assertNotIn("offload", events[0]["message"])  # it is off

    def test_reading_a_leaf_is_what_counts(self):
        one = job()
        self.read_all(one)
        self.assertEqual(one.unread(), {})
        one = job()
        one["optimizer"], one.plain(), len(one["data"]), "seed" in one
        self.assertEqual({"optimizer.eps", "data.seq_length", "seed"} - one.unread().keys(), set())
        dict(one["optimizer"])
        self.assertNotIn("optimizer.eps", one.unread())
        self.assertEqual(one["optimizer"].get("momentum", 7), 7)

    def test_a_field_is_idle_while_another_is_off(self):
        one = job(compile_mode="max-autotune", fp8_hybrid=True, sac_frequency=4)
        self.assertEqual({"compile_mode", "fp8_hybrid", "sac_frequency"} & one.unread().keys(), set())
        one = job(compile=True, compile_mode="max-autotune", precision="fp8", fp8_hybrid=True)
        self.assertLessEqual({"compile", "compile_mode", "fp8_hybrid"}, one.unread().keys())

    def test_ignored_fields_and_groups(self):
        one = job(framework={"a": 1, "b": {"c": [2]}})
        self.assertEqual({k for k in one.unread() if k.startswith("framework")}, {"framework.a", "framework.b.c"})
        one.ignore("framework.b", "known to be of no use")
        one.ignore("seed", "nothing is random")
        self.assertIn("framework.a", one.unread())
        self.assertEqual({"framework.b.c", "seed"} & one.unread().keys(), set())

    def test_no_job(self):
        with mock.patch.dict(os.environ, {"TPRIMAT_JOB": "/nowhere"}):
            events, code = printed(Job.load)
        self.assertEqual((code, events[0]["class"]), (2, "launch"))


class ModelTests(unittest.TestCase):
    def test_first_weights_are_those_of_the_seed_and_the_name(self):
        first, again, other = (models.fresh(seed, 0.5, "a.weight", (64, 32), "cpu") for seed in (1, 1, 2))
        self.assertTrue(torch.equal(first, again))
        self.assertFalse(torch.equal(first, other))
        self.assertFalse(torch.equal(first, models.fresh(1, 0.5, "b.weight", (64, 32), "cpu")))
        self.assertAlmostEqual(first.std().item(), 0.5, delta=0.05)
        self.assertEqual(models.fresh(1, 0.5, "norm.weight", (3,), "cpu").tolist(), [1, 1, 1])
        self.assertEqual(models.fresh(1, 0.5, "proj.bias", (2,), "cpu").tolist(), [0, 0])

    def test_every_architecture_is_built_whole(self):
        shapes = parity.MODELS | parity.OTHERS
        shapes["deepseek_v3"] = shapes["deepseek_v3"] | {"norm_eps": 1e-5}
        shapes["mistral"] = parity.MODELS["llama"] | {"architecture": "mistral", "rope_scaling": None}
        shapes["gpt2"] = parity.MODELS["qwen2"] | {"architecture": "gpt2", "num_kv_heads": 4}
        for name, shape in shapes.items():
            one = job(model=shape, initialisation={"std": 0.125})
            model = models.materialise(models.build(one), "cpu")
            models.initialise(model, one, "cpu")
            config = callback.model_in_effect(model.config)
            factor = None if name == "gpt2" else (shape.get("rope_scaling") or {"factor": 1.0})["factor"]
            with self.subTest(name):
                self.assertEqual(config.pop("rope_scaling_factor", None), factor)
                self.assertEqual({k: config[k] for k in config if k in shape and config[k] != shape[k]}, {})
                stated = {k: v for k, v in shape.items() if k.startswith(("sliding", "q_", "kv_", "qk_n", "qk_r", "v_h")) and v}
                self.assertEqual(stated, {k: config.get(k) for k in stated})
                if shape["kv_lora_rank"]:
                    norms = {m.variance_epsilon for m in model.modules() if hasattr(m, "variance_epsilon")}
                    self.assertEqual((norms, config["router_scale"], config["router_groups"]), ({shape["norm_eps"]}, 1.0, 1))
                output, entry = model.get_output_embeddings().weight, model.get_input_embeddings().weight
                self.assertEqual(output is entry, shape["tie_embeddings"])
                self.assertAlmostEqual(entry.std().item(), 0.125, delta=0.005)
                tokens = torch.arange(16)[None]
                self.assertTrue(model(input_ids=tokens, labels=tokens).loss.isfinite())

    def test_experts_compute_in_bf16_under_autocast(self):
        """`grouped_mm` heeds no autocast, so a model in fp32 would compute its experts in fp32 and be called bf16."""
        from transformers.integrations import moe

        model = models.materialise(models.build(job(model=parity.OTHERS["qwen3_moe"])), "cpu")
        computed, can_use = set(), moe._can_use_grouped_mm
        noting = lambda input, weight, offs: computed.add((input.dtype, weight.dtype)) or can_use(input, weight, offs)
        with mock.patch.object(moe, "_can_use_grouped_mm", noting), torch.autocast("cpu", torch.bfloat16):
            model(input_ids=torch.arange(16)[None])
        self.assertEqual(computed, {(torch.bfloat16, torch.bfloat16)})

    def test_only_matrices_decay(self):
        model = models.build(job())
        decayed, others = models.parameter_groups(model, 0.1)
        self.assertEqual({p.ndim for p in decayed["params"]}, {2})
        self.assertEqual((others["weight_decay"], {p.ndim for p in others["params"]}), (0.0, {1}))

    def test_every_second_layer_is_recomputed(self):
        model = models.build(job(model=parity.MODELS["llama"] | {"num_layers": 5}))
        models.checkpoint_layers(model, job(activation_checkpointing=True, sac_frequency=2))
        layers = [layer.gradient_checkpointing for layer in models.decoder_layers(model)]
        self.assertEqual(layers, [True, False, True, False, True])
        self.assertEqual(model.tprimat_effective["sac_frequency"], 2)

    def test_fp8_replaces_the_matrices_of_layers_with_a_stand_in(self):
        inside, entered = [], []

        class Linear(torch.nn.Linear):
            def __init__(self, inputs, outputs, *, bias, params_dtype, device):
                super().__init__(inputs, outputs, bias, device=device, dtype=params_dtype)

            def forward(self, x):
                self.under_fp8 = bool(inside)
                return super().forward(x)

        @contextlib.contextmanager
        def fp8_autocast(enabled, fp8_recipe):
            inside.append(enabled)
            entered.append(fp8_recipe)
            yield
            inside.pop()

        te = types.SimpleNamespace(Linear=Linear, fp8_autocast=fp8_autocast)
        formats = types.SimpleNamespace(HYBRID="hybrid", E4M3="e4m3")
        recipe = types.SimpleNamespace(DelayedScaling=lambda fp8_format: fp8_format, Format=formats)
        modules = {"transformer_engine": types.SimpleNamespace(pytorch=te), "transformer_engine.pytorch": te}
        modules |= {"transformer_engine.common": mock.Mock(), "transformer_engine.common.recipe": recipe}
        one = job(precision="fp8", fp8_hybrid=True)
        model = models.build(one)
        with mock.patch.dict(sys.modules, modules):
            models.use_fp8(model, one)
        models.materialise(model, "cpu")
        models.initialise(model, one, "cpu")
        tokens = torch.arange(16)[None]
        model(input_ids=tokens, labels=tokens).loss.backward()
        matrices = [m for m in model.modules() if isinstance(m, Linear)]
        self.assertEqual((len(matrices), set(entered)), (7 * 3, {"hybrid"}))
        self.assertTrue(all(m.under_fp8 and m.weight.grad is not None for m in matrices))
        self.assertNotIsInstance(model.get_output_embeddings(), Linear)
        self.assertEqual(model.tprimat_effective, model.tprimat_effective | {"precision": "fp8", "fp8_hybrid": True})

    def test_fp8_without_its_module_is_a_launch_error(self):
        with mock.patch.dict(sys.modules, {"transformer_engine": None, "transformer_engine.pytorch": None}):
            events, code = printed(lambda: models.use_fp8(models.build(job()), job()))
        self.assertEqual((code, events[0]["class"]), (2, "launch"))
        self.assertIn("transformer_engine", events[0]["message"])


class DataTests(unittest.TestCase):
    def test_tokens_come_from_the_dataset_that_the_job_names(self):
        one = job(model=parity.MODELS["llama"] | {"dataset": "corpus", "tokenizer": "words"})
        with mock.patch.dict(os.environ):
            os.environ.pop("TPRIMAT_DATASET", None)
            events, code = printed(lambda: open_dataset(one))
        self.assertEqual((code, events[0]["class"]), (2, "launch"))
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"TPRIMAT_DATASET": f"{folder}/text"}):
            tokens = [n % 331 for n in range(5 * 64)]
            Path(folder, "text.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
            head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2)
            Path(folder, "text.idx").write_bytes(head + struct.pack("<iqqq", len(tokens), 0, 0, 1))
            data = open_dataset(one)
            rank_1 = micro_batch(data, 1, rows=1, replica=1, replicas=2)
        self.assertEqual(rank_1["input_ids"].tolist(), [tokens[3 * 64 : 4 * 64]])
        self.assertEqual((data.effective()["data"], data.effective()["dataset"]), ("real", "corpus"))
        self.assertEqual({"model.dataset", "model.tokenizer"} & one.unread().keys(), set())

    def test_ranks_share_a_step_without_overlap(self):
        data = [{"input_ids": torch.tensor([n])} for n in range(12)]
        batches = [micro_batch(data, n, 2, rank, 3)["input_ids"].flatten().tolist() for n in range(2) for rank in range(3)]
        self.assertEqual(sum(batches, []), list(range(12)))


class CallbackTests(unittest.TestCase):
    def test_the_file_needs_the_standard_library_only(self):
        script = "import tprimat_callback as t; e = t.Events('mine'); e.start({'seq_length': 8}); e.step(1, loss=2.0); e.end()"
        command = [sys.executable, "-I", "-S", "-B", "-c", f"import sys; sys.path[:0] = [{str(LIB)!r}]; {script}"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        start, step, end = map(json.loads, lines)
        self.assertEqual((start["schema"], start["effective"]), ("tprimat.events/1", {"seq_length": 8}))
        self.assertEqual((step["step"], step["loss"], end["status"], end["steps"]), (1, 2.0, "ok", 1))
        self.assertGreaterEqual(step["step_time_seconds"], 0)
        self.assertEqual(step["memory_kind"], "peak_rss")

    def test_a_loss_that_is_no_number(self):
        def train():
            events = callback.Events("mine")
            events.start({})
            events.step(1, loss=torch.tensor(float("nan")), grad_norm=float("inf"))
            events.end()

        (_, step, error), code = printed(train)
        self.assertEqual((step["loss"], step["grad_norm"], step["anomaly"]), (None, None, "nan_loss"))
        self.assertEqual((error["class"], code), ("nan", 1))

    def test_only_rank_0_prints_but_every_rank_may_fail(self):
        def both():
            callback.emit("step", step=1)
            callback.emit("error", message="")

        with mock.patch.dict(os.environ, {"RANK": "3"}):
            self.assertEqual([e["event"] for e in printed(both)[0]], ["error"])

    def trained(self, weight=None, **arguments):
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
        )
        data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 16
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        args = transformers.TrainingArguments(
            output_dir=folder.name, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, max_steps=4,
            per_device_train_batch_size=2, gradient_accumulation_steps=2, seed=9, **arguments,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        if weight is not None:
            torch.nn.init.constant_(model.lm_head.weight, weight)
        trainer = transformers.Trainer(model, args, train_dataset=data)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(callback.trainer_callback(seq_length=8))
        return printed(trainer.train)[0]

    def test_transformers_own_trainer(self):
        start, *steps, end = self.trained(logging_steps=1)
        expected = {"micro_batch_size": 2, "global_batch_size": 4, "seq_length": 8, "optimizer": "adamw", "seed": 9}
        self.assertEqual(start["effective"], start["effective"] | expected | {"num_layers": 1, "vocab_size": 32})
        self.assertEqual([s["step"] for s in steps], [1, 2, 3, 4])
        self.assertTrue(all(s["loss"] > 0 and s["learning_rate"] > 0 and s["grad_norm"] > 0 for s in steps))
        self.assertEqual((end["event"], end["steps"]), ("end", 4))

    def test_a_loss_over_several_steps_says_over_how_many(self):
        _, *steps, _ = self.trained(logging_steps=3, logging_first_step=True)
        self.assertEqual([s["step"] for s in steps], [1, 2, 3, 4])
        self.assertTrue(all(s["step_time_seconds"] > 0 for s in steps))
        self.assertEqual([s.get("loss_steps_averaged") for s in steps], [None, None, 2, None])
        self.assertEqual([s.get("loss", 0) > 0 for s in steps], [True, False, True, False])
        self.assertEqual(["grad_norm" in s for s in steps], [True, False, True, False])

    def test_a_loss_that_is_no_number_fails_the_run_however_often_it_is_logged(self):
        for more in ({"logging_steps": 1}, {"logging_steps": 2}, {"logging_steps": 2, "logging_nan_inf_filter": False}):
            with self.subTest(more):
                *_, step, error = self.trained(weight=float("nan"), **more)
                self.assertEqual((step["loss"], step["anomaly"]), (None, "nan_loss"))
                self.assertEqual((error["event"], error["class"]), ("error", "nan"))

    def test_lightning_by_a_stand_in(self):
        pytorch = types.SimpleNamespace(Callback=object)
        lightning = types.SimpleNamespace(pytorch=pytorch)
        with mock.patch.dict(sys.modules, {"lightning": lightning, "lightning.pytorch": pytorch}):
            one = callback.lightning_callback(global_batch_size=4)
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=0.5, weight_decay=0.25)
        trainer = types.SimpleNamespace(world_size=1, max_steps=2, optimizers=[optimizer], global_step=0, callback_metrics={})

        def train():
            one.on_train_start(trainer, None)
            for batch in range(4):  # two micro-steps a step
                one.on_train_batch_start(trainer, None, None, batch)
                trainer.global_step = (batch + 1) // 2
                trainer.callback_metrics = {"train_loss": torch.tensor(3.0 - trainer.global_step)}
                optimizer.param_groups[0]["lr"] = 0.5 - 0.125 * trainer.global_step
                one.on_train_batch_end(trainer, None, None, None, batch)
            one.on_train_end(trainer, None)

        (start, first, second, end), code = printed(train)
        self.assertEqual(start["effective"], start["effective"] | {"global_batch_size": 4, "weight_decay": 0.25})
        self.assertEqual([(s["step"], s["loss"], s["learning_rate"]) for s in (first, second)], [(1, 2.0, 0.5), (2, 1.0, 0.375)])
        self.assertEqual((end["steps"], code), (2, None))


if __name__ == "__main__":
    unittest.main()
