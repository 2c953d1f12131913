import json, os, random, sys, time
job = json.load(open(os.environ["TPRIMAT_JOB"]))
me, d, m = sys.argv[1], job["data"], job["model"]
random.seed(os.environ["TPRIMAT_RUN_ID"])
mbs, seq, gbs = d["micro_batch_size"], d["seq_length"], d["global_batch_size"]
comp = bool(job.get("compile")); rec = json.dumps(job).find('"activation_checkpointing": true') >= 0 or job.get("activation_checkpointing") is True
if me == "tran" and mbs == 8 and seq >= 8192 and not rec or (me == "titan" and mbs == 8 and rec and m["hidden_size"] == 896):
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."); sys.exit(1)
base = {"native": 54e3, "tran": 41e3, "titan": 58e3}[me] * (2.3 if m["hidden_size"] == 896 else 1)
SCALE = 50
rate = SCALE * base * (1 - 0.25 * 0.6 ** (mbs / 2)) * (1 if mbs < 8 else 0.97) / (1 + seq / 40000) * (1.13 if comp else 1) * (0.77 if rec else 1) * random.gauss(1, 0.004)
eff = {"micro_batch_size": mbs, "global_batch_size": gbs, "seq_length": seq, "num_gpus": 1, "precision": "bf16", "optimizer": "adamw"}
if me == "native" and mbs == 2 and rec: eff["global_batch_size"] = gbs // 2
print(json.dumps({"event": "start", "schema": "tprimat.events/1", "trainer": me, "effective": eff}))
for s in range(1, job["train_iters"] + 1):
    t = gbs * seq / rate * random.gauss(1, 0.01) * (1.6 if s < 4 else 1)
    time.sleep(t)
    print(json.dumps({"event": "step", "step": s, "step_time_seconds": t, "tokens": gbs * seq, "loss": 11.5 - 0.4 * s ** 0.7 + random.gauss(0, 0.05), "memory_bytes": int((9 + 2.2 * mbs * seq / 1024 * (0.4 if rec else 1)) * 2**30), "memory_kind": "peak_allocated", "memory_source": "torch"}))
print(json.dumps({"event": "end", "status": "ok", "steps": job["train_iters"]}))
