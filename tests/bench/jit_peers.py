#!/usr/bin/env python3
"""Times what a user would pick instead of samite's kernel cache, beside tests/bench/jit_bench.cpp: one JSON object a line.

Triton: a tuned kernel shared by 4 threads with 12 new keys each, a kernel cold and from its disk cache, a launch beyond the driver's.
torch.compile: a decoder layer, cold and in a new process over a warm cache. Arguments name some of threads, triton, forward, backward;
none means all. Run with `child NAME` it is one of those processes.
"""
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

COMMON = {"bench": "jit", "command": "jit_peers.py", "date": os.environ.get("BENCH_DATE", ""), "commit": os.environ.get("BENCH_COMMIT", "")}


def row(case, peer, **numbers):
    print(json.dumps({**COMMON, "case": case, "peer": peer, **numbers}), flush=True)


def triton_kernels():
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, step, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(x + i, mask=i < n) + step, mask=i < n)

    tuned = triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 128, 256)], key=["n"], warmup=1, rep=2)(add)
    return triton, add, tuned


def threads_with_new_keys():
    import torch

    triton, _, tuned = triton_kernels()
    torch.zeros(1, device="cuda")
    ready = threading.Barrier(4)
    errors, first = [], []

    def work():
        x = torch.zeros(4096, device="cuda")
        ready.wait()
        for key in range(12):
            try:
                tuned[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, 1.0, 1000 + key)
            except Exception as e:  # what a user's thread would die of
                errors.append(1)
                first.append(f"{type(e).__name__}: {e}")

    threads = [threading.Thread(target=work) for _ in range(4)]
    start = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    row("4 threads, the same 12 new keys each, one tuned kernel", "triton " + triton.__version__, ms=round((time.perf_counter() - start) * 1000, 1), calls=48, errors=len(errors), first=first[0] if first else "")


def first_call(name):
    """In a process of its own: ms of the first call, after torch and the device are up."""
    import torch

    x = torch.zeros(4096, device="cuda")
    torch.cuda.synchronize()
    if name == "triton":
        triton, add, _ = triton_kernels()
        start = time.perf_counter()
        add[(16,)](x, 1.0, 4096, BLOCK=256)
        torch.cuda.synchronize()
        ms = (time.perf_counter() - start) * 1000
        times = []
        for _ in range(50):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                add[(16,)](x, 1.0, 4096, BLOCK=256)
            times.append((time.perf_counter() - start) * 1e4)
        print(json.dumps({"ms": ms, "launch_us": min(times), "version": triton.__version__}))
        return
    import torch.nn.functional as F

    class layer(torch.nn.Module):
        def __init__(self, hidden=2048, heads=16, kv_heads=8, head_dim=128, intermediate=6144):
            super().__init__()
            linear = lambda i, o: torch.nn.Linear(i, o, bias=False, device="cuda", dtype=torch.bfloat16)
            self.q, self.k, self.v, self.o = linear(hidden, heads * head_dim), linear(hidden, kv_heads * head_dim), linear(hidden, kv_heads * head_dim), linear(heads * head_dim, hidden)
            self.gate, self.up, self.down = linear(hidden, intermediate), linear(hidden, intermediate), linear(intermediate, hidden)
            self.norms = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(n, device="cuda", dtype=torch.bfloat16)) for n in (hidden, hidden, head_dim, head_dim)])
            self.sizes = heads, kv_heads, head_dim

        def norm(self, x, i):
            y = x.float()
            return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.norms[i]

        def forward(self, x, cos, sin):
            heads, kv_heads, d = self.sizes
            B, S, _ = x.shape
            turn = lambda t: t * cos + torch.cat((-t[..., d // 2 :], t[..., : d // 2]), -1) * sin
            split = lambda t, h: t.view(B, S, h, d).transpose(1, 2)
            h = self.norm(x, 0)
            q, k, v = turn(self.norm(split(self.q(h), heads), 2)), turn(self.norm(split(self.k(h), kv_heads), 3)), split(self.v(h), kv_heads)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(a.transpose(1, 2).reshape(B, S, heads * d))
            h = self.norm(x, 1)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    model = torch.compile(layer())
    x = torch.randn(1, 1024, 2048, device="cuda", dtype=torch.bfloat16, requires_grad=name == "backward")
    cos = torch.randn(1, 1, 1024, 128, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    start = time.perf_counter()
    if name == "backward":
        model(x, cos, cos).float().sum().backward()
    else:
        with torch.no_grad():
            model(x, cos, cos)
    torch.cuda.synchronize()
    print(json.dumps({"ms": (time.perf_counter() - start) * 1000, "version": torch.__version__}))


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "child":
        return first_call(sys.argv[2])
    wanted = sys.argv[1:] or ["threads", "triton", "forward", "backward"]
    if "threads" in wanted:
        threads_with_new_keys()
    for name, case in (("triton", "a kernel of one line"), ("forward", "decoder layer, forward"), ("backward", "decoder layer, forward and backward")):
        if name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "TRITON_CACHE_DIR": folder + "/triton", "TORCHINDUCTOR_CACHE_DIR": folder + "/inductor", "CUDA_CACHE_PATH": folder + "/cuda"}
            for when in ("cold", "from disk, in a new process"):
                done = subprocess.run([sys.executable, __file__, "child", name], env=env, capture_output=True, text=True)
                if done.returncode != 0:
                    row(f"{case}, {when}", name, error=done.stderr.strip().splitlines()[-1] if done.stderr else "")
                    continue
                found = json.loads(done.stdout.strip().splitlines()[-1])
                peer = ("triton " if name == "triton" else "torch.compile ") + found["version"]
                row(f"{case}, {when}", peer, ms=round(found["ms"], 2), **({"launch_us": round(found["launch_us"], 2)} if "launch_us" in found else {}))


main()
