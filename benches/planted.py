"""Is a slow-down that is known found where it was planted? `tprimat why` over traces of a small Transformer on one GPU.

    python3 benches/planted.py TPRIMAT FOLDER

Each case is the same training step with one thing made slower. Its part is named first where the largest row of the
difference from the plain step is the one that it was planted in. A trace that FOLDER has already is only read.
"""

import json
import pathlib
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 6, 2048, 16, 2048, 4, 32000
PRODUCTS, ATTENTION, ELEMENTWISE = "matrix_products", "attention", "norms_and_elementwise"
OPTIMIZER, COPIES, IDLE = "optimizer", "copies", "idle"

# name, and the part that becomes slower
CASES = {
    "one more element-wise pass a layer": ELEMENTWISE,
    "one more norm a layer": ELEMENTWISE,
    "dropout in each layer": ELEMENTWISE,
    "the loss twice": ELEMENTWISE,
    "norms written out in PyTorch": ELEMENTWISE,
    "one more product a layer": PRODUCTS,
    "products in eight slices": PRODUCTS,
    "one product in fp32": PRODUCTS,
    "attention twice": ATTENTION,
    "attention by the memory-efficient kernel": ATTENTION,
    "attention that is not causal": ATTENTION,
    "AdamW by foreach": OPTIMIZER,
    "AdamW as a loop": OPTIMIZER,
    "two steps of AdamW": OPTIMIZER,
    "waiting for the device in each layer": IDLE,
    "20 ms of sleep a step": IDLE,
    "data that comes late": IDLE,
    "an emptied cache each step": IDLE,
    "activations copied to the host": COPIES,
    "activations copied on the device": COPIES,
    "weights sent from the host": COPIES,
}


class Layer(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.case = case
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.host = torch.empty(BATCH * LENGTH, WIDTH, pin_memory=True, dtype=torch.bfloat16)

    def product(self, linear, x):
        if self.case == "products in eight slices":
            return torch.cat([F.linear(x, rows) for rows in linear.weight.chunk(8)], -1)
        return linear(x)

    def attend(self, q, k, v):
        is_causal = self.case != "attention that is not causal"
        if self.case == "attention by the memory-efficient kernel":
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.EFFICIENT_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def norm(self, which, x):
        weight = self.norms[which].weight.to(torch.bfloat16)
        if self.case == "norms written out in PyTorch":
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16) * weight
        return F.rms_norm(x, (WIDTH,), weight, 1e-6)

    def forward(self, x):
        case = self.case
        shape = (BATCH, LENGTH, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.product(self.qkv, self.norm(0, x)).chunk(3, -1))
        attended = self.attend(q, k, v)
        if case == "attention twice":
            attended = 0.5 * attended + 0.5 * self.attend(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        hidden = F.silu(self.product(self.up, self.norm(1, x)))
        if case == "one product in fp32":
            with torch.autocast("cuda", enabled=False):
                x = x + self.down(hidden.float())
        else:
            x = x + self.product(self.down, hidden)
        if case == "one more element-wise pass a layer":
            x = torch.sin(x) + x
        if case == "one more norm a layer":
            x = x + self.norm(2, x)
        if case == "dropout in each layer":
            x = F.dropout(x, 0.1)
        if case == "one more product a layer":
            x = x + F.linear(x, self.out.weight)
        if case == "waiting for the device in each layer":
            torch.cuda.synchronize()
        if case == "activations copied to the host":
            self.host.copy_(x.detach().view(-1, WIDTH), non_blocking=True)
        if case == "activations copied on the device":
            for _ in range(4):
                x.detach().contiguous().clone()
        return x


class Model(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.case, self.embedding, self.head = case, nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(Layer(case) for _ in range(LAYERS))

    def forward(self, tokens):
        x = self.embedding(tokens).to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x)
        loss = lambda: F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        if self.case == "the loss twice":
            words = self.head(x)[:, :-1].flatten(0, 1)
            return sum(F.cross_entropy(words.float() + bias, tokens[:, 1:].flatten()) for bias in (0.0, 1.0)) / 2
        return loss()


def trace(case, path):
    torch.manual_seed(0)
    model = Model(case).cuda()
    ways = {"AdamW by foreach": {"foreach": True}, "AdamW as a loop": {"foreach": False}}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, **ways.get(case, {"fused": True}))
    tokens = torch.randint(WORDS, (BATCH, LENGTH), device="cuda")
    sent = torch.empty(WIDTH, 8 * WIDTH, pin_memory=True)
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1)
    write = lambda profile: profile.export_chrome_trace(str(path))
    with torch.profiler.profile(schedule=schedule, on_trace_ready=write) as profile:
        for _ in range(6):
            if case == "data that comes late":
                torch.cuda.synchronize()
                time.sleep(0.03)
            if case == "weights sent from the host":
                sent.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens)
            loss.backward()
            optimizer.step()
            if case == "two steps of AdamW":
                optimizer.step()
            optimizer.zero_grad()
            if case == "20 ms of sleep a step":
                torch.cuda.synchronize()
                time.sleep(0.02)
            if case == "an emptied cache each step":
                torch.cuda.empty_cache()
            profile.step()
    del model, optimizer
    torch.cuda.empty_cache()


def parts(tprimat, path):
    said = subprocess.run([tprimat, "why", "--json", path], capture_output=True, text=True, check=True).stdout
    breakdown = json.loads(said)["breakdowns"][0]["breakdown"]
    total = sum(part["seconds"] for part in breakdown["parts"])
    assert abs(total / breakdown["step_seconds"] - 1) < 0.02, (path, total, breakdown["step_seconds"])
    return {part["part"]: 1e3 * part["seconds"] for part in breakdown["parts"]}, 1e3 * breakdown["step_seconds"]


def main():
    tprimat, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.enable_flash_sdp(True)
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "traces from elsewhere"
    print(f"{card}, PyTorch {torch.__version__}; {LAYERS} layers of {WIDTH}, {BATCH} x {LENGTH} tokens")
    right, plain = 0, None
    for number, case in enumerate([None, *CASES]):
        path = folder / f"{number}.json"
        if not path.exists():
            trace(case, path)
        found, step = parts(tprimat, path)
        if case is None:
            plain = found
            print(f"plain step: {step:.1f} ms")
            continue
        more = {part: found[part] - plain[part] for part in found}
        first = max(more, key=more.get)
        right += first == CASES[case]
        print(
            f"{'named first' if first == CASES[case] else 'NOT FIRST  '}  {case:42} planted in {CASES[case]:22} "
            f"+{more[CASES[case]]:.1f} ms; largest: {first} +{more[first]:.1f} ms"
        )
    print(f"{right} of {len(CASES)} are named first")


main()
