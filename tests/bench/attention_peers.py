#!/usr/bin/env python3
"""Times what a user would pick instead of samite's attention on the cases of tests/bench/attention_bench.cpp: one JSON object a line.

SDPA with the cuDNN and flash backends on dense cases, FlexAttention (compiled) under masks. Burst: 40 ms idle, one untimed call, two timed,
median of five; sustained: after 0.2 s of calls. An argument `forward` or `backward` leaves the other pass out; `sweep` times the sweeps instead: SDPA over lengths
and head dims, FlexAttention over windows. `flash` times the flash backend alone on the causal cases, which the portable kernels are compared with.
`warm` runs what is to be compiled once, so that a later run finds it in the compiler's caches. `decode` times the plain cases and the blocks (without their mask) of tests/bench/attention_decode_bench.cpp: calls in a CUDA graph
that take turns on buffers of 400 MB together. `errors FOLDER` compares what `attention_bench results FOLDER` wrote, and cuDNN's results on the same data, with
double precision.
"""
import contextlib
import glob
import json
import statistics
import sys
import time

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

device = "cuda"
passes = sys.argv[1] if len(sys.argv) > 1 else ""
torch.manual_seed(0)
torch._functorch.config.donated_buffer = False  # a compiled backward pass is run more than once


def timed(fn, n):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(n):
        fn()
    b.record()
    b.synchronize()
    return a.elapsed_time(b) / n


def burst(fn):
    for _ in range(3):
        fn()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        time.sleep(0.04)
        fn()
        times.append(timed(fn, 2))
    return statistics.median(times)


def sustained(fn, one):
    for _ in range(int(200 / one) + 1):
        fn()
    return timed(fn, int(350 / one) + 1)


def report(case, peer, fn, q, k, v):
    def row(name, step):
        if passes == "warm":
            return step()
        ms = burst(step)
        print(json.dumps({"bench": "attention", "case": case, "pass": name, "peer": peer, "ms": round(ms, 4), "ms_sustained": round(sustained(step, ms), 4)}), flush=True)

    if passes != "backward":
        with torch.no_grad():
            row("forward", fn)
    if passes != "forward":
        for t in (q, k, v):
            t.requires_grad_(True)
        out = fn()
        d_out = torch.randn_like(out)
        row("backward", lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
        for t in (q, k, v):
            t.requires_grad_(False)


def tensors(B, H, G, Q, K, D, Dv=None):
    make = lambda h, s, d: torch.randn(B, h, s, d, device=device, dtype=torch.bfloat16)
    return make(H, Q, D), make(G, K, D), make(G, K, Dv or D)


def dense(case, B, H, S, D, causal=True, Dv=None):
    q, k, v = tensors(B, H, H, S, S, D, Dv)
    for peer, backend in (("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION), ("sdpa-flash", SDPBackend.FLASH_ATTENTION)):
        if passes == "flash" and (peer != "sdpa-flash" or not causal):
            continue
        try:
            with sdpa_kernel(backend):
                report(case, peer, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v)
        except RuntimeError as error:
            print(json.dumps({"bench": "attention", "case": case, "peer": peer, "error": str(error).splitlines()[0]}), flush=True)


def flex(case, H, G, S, K, mask):
    torch._dynamo.reset()  # each case from a cold compiler: after a few masks and passes its calls fall back
    compiled, make_mask = torch.compile(flex_attention, dynamic=False), torch.compile(create_block_mask)
    q, k, v = tensors(1, H, G, S, K, 128)
    block_mask = make_mask(mask, None, None, S, K, device=device)
    report(case, "flex", lambda: compiled(q, k, v, block_mask=block_mask, enable_gqa=H != G), q, k, v)


def all_dense():
    dense("causal S8192 B2 H16 D128", 2, 16, 8192, 128)
    dense("full S16384 B1 H16 D128", 1, 16, 16384, 128, causal=False)
    dense("causal S1024 B16 H16 D128", 16, 16, 1024, 128)
    dense("causal S8192 B2 H32 D64", 2, 32, 8192, 64)
    dense("causal S8192 B2 H8 D256", 2, 8, 8192, 256)


def windows():
    for width in (128, 256, 512, 1024, 2048, 4096, 8192):
        flex(f"sweep window {width} S16384 B1 H16 D128", 16, 16, 16384, 16384, lambda b, h, q, kv: (q >= kv) & (q - kv < width))


def sweep():
    for S in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
        B = max(1, 16384 // S)
        dense(f"sweep causal S{S} B{B} H16 D128", B, 16, S, 128)
    for D, Dv in ((64, 64), (96, 96), (192, 128), (256, 256)):
        dense(f"sweep causal S4096 B4 H16 D{D}" + (f"/{Dv}" if Dv != D else ""), 4, 16, 4096, D, Dv=Dv)
    windows()


def sparse():
    S, blocks = 8192, 512
    documents = (torch.arange(S, device=device) // 1500).to(torch.int32)
    i = torch.arange(blocks, device=device)
    anchors = 16 * i + (i * 7) % 13

    def dflash(with_documents, window):
        def mask(b, h, q, kv):
            a = anchors[q // 16]
            c = torch.clamp(kv, max=S - 1)
            keep = (kv < S) & (kv < a)
            if with_documents:
                keep = keep & (documents[c] == documents[a])
            if window:
                keep = keep & (a + q % 16 - kv < window)
            return keep | ((kv >= S) & ((kv - S) // 16 == q // 16))
        return mask

    long = (torch.arange(2 * S, device=device) // 1500).to(torch.int32)
    same = lambda b, h, q, kv: (q >= kv) & (long[q] == long[kv])
    sliding = lambda b, h, q, kv: (q >= kv) & (q - kv < 1024)
    for S_, H, G in ((S, 16, 16), (2 * S, 64, 8)):
        heads = f"H{H}" + (f"/{G}" if G != H else "")
        flex(f"document causal S{S_} B1 {heads} D128", H, G, S_, S_, same)
        flex(f"sliding 1024 S{S_} B1 {heads} D128", H, G, S_, S_, sliding)
    for suffix, with_documents, window in (("", True, 0), (" window 2048", True, 2048), (" one document", False, 0), (" one document window 2048", False, 2048)):
        flex("DFlash 512x16 S8192 B1 H32/8 D128" + suffix, 32, 8, S, 2 * S, dflash(with_documents, window))


def decode():
    H, G, D = 32, 8, 128
    compiled = torch.compile(flex_attention, dynamic=False)
    sdpa = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    peers = (("sdpa-flash", SDPBackend.FLASH_ATTENTION, sdpa), ("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION, sdpa), ("flex", None, lambda q, k, v: compiled(q, k, v, enable_gqa=True)))
    shapes = [(f"plain B{B} K{K}k H32/8 D128", B, 1, K) for B in (1, 4, 16, 64) for K in (8, 32, 128)]
    shapes = [(f"block of {Q} B{B} K{K}k H32/8 D128", B, Q, K) for B, K in ((1, 32), (16, 8)) for Q in (4, 16, 64)] + shapes
    for peer, backend, call in peers:
        for case, B, Q, K in shapes:
            size = B * G * K * 1024 * D * 4
            sets = [tensors(B, H, G, Q, K * 1024, D) for _ in range(min(16, int(4e8 / size) + 1))]
            calls = lambda: [call(*t) for t in sets]
            try:
                with torch.no_grad(), sdpa_kernel(backend) if backend else contextlib.nullcontext():
                    for _ in range(3):
                        calls()
                    torch.cuda.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        calls()
                    steps = max(2, int(2e-2 / (size * len(sets) / 4e12)))
                    timed(graph.replay, 2)
                    ms = statistics.median(timed(graph.replay, steps) for _ in range(5)) / len(sets)
                    del graph
                print(json.dumps({"bench": "attention_decode", "case": case, "pass": "forward", "peer": peer, "ms": round(ms, 5), "gbps": round(size / ms / 1e6)}), flush=True)
            except RuntimeError as error:
                print(json.dumps({"bench": "attention_decode", "case": case, "peer": peer, "error": str(error).splitlines()[0]}), flush=True)
            del sets


def errors(folder):
    from safetensors.torch import load_file
    for path in sorted(glob.glob(folder + "/*.safetensors")):
        t = {name: x.to(device) for name, x in load_file(path).items()}
        q, k, v, d_out = t["Q"], t["K"], t["V"], t["d_out"].transpose(1, 2)
        hidden = torch.ones(q.shape[2], k.shape[2], device=device, dtype=torch.bool).tril().logical_not()

        def exact(q, k, v):
            scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
            return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v

        def passes_of(call, dtype):
            x = [y.to(dtype).requires_grad_(True) for y in (q, k, v)]
            out = call(*x)
            return [out, *torch.autograd.grad(out, x, d_out.to(dtype))]

        right = passes_of(exact, torch.float64)
        found = {"samite": [t["out"].transpose(1, 2), t["dQ"], t["dK"], t["dV"]]}
        for peer, backend in (("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION), ("sdpa-flash", SDPBackend.FLASH_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    found[peer] = passes_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q.dtype)
            except RuntimeError as error:
                print(json.dumps({"bench": "attention_error", "case": path.split("/")[-1][:-12], "peer": peer, "error": str(error).splitlines()[0]}), flush=True)
        for who, results in found.items():
            row = {"bench": "attention_error", "case": path.split("/")[-1][:-12], "of": who}
            for name, x, y in zip(("out", "dQ", "dK", "dV"), results, right):
                row[name + "_rms"] = float(f"{((x.double() - y).norm() / y.norm()).item():.3g}")
                row[name + "_worst"] = float(f"{((x.double() - y).abs().max() / y.abs().max()).item():.3g}")
            print(json.dumps(row), flush=True)


if passes == "decode":
    decode()
elif passes == "errors":
    errors(sys.argv[2])
elif passes == "sweep":
    sweep()
elif passes == "warm":
    windows() if "windows" in sys.argv else sparse()
else:
    all_dense()
    if passes != "flash":
        sparse()
