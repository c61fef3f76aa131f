"""FlexAttention's create_block_mask on the masks of tile_map_bench: time and peak memory, eager and compiled, as JSON lines."""
import json
import os
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask


def masks(size):
    ids = torch.arange(size, device="cuda", dtype=torch.int32) // 1500
    blocks = size // 16
    anchors = torch.tensor([min(size - 1, 16 * i + (i * 7) % 13) for i in range(blocks)], device="cuda", dtype=torch.int32)

    def causal(b, h, q, kv):
        return kv <= q

    def window(b, h, q, kv):
        return (kv <= q) & (q - kv < 1024)

    def document(b, h, q, kv):
        return (kv <= q) & (ids[q] == ids[kv])

    def dflash(b, h, q, kv):
        return ((kv < size) & (kv < anchors[q // 16])) | ((kv >= size) & ((kv - size) // 16 == q // 16))

    def sliding(b, h, q, kv):
        near = anchors[q // 16] + q % 16 - kv < 2048
        return ((kv < size) & (kv < anchors[q // 16]) & near) | ((kv >= size) & ((kv - size) // 16 == q // 16))

    def packed(b, h, q, kv):
        context = (kv < size) & (kv < anchors[q // 16]) & (ids[torch.clamp(kv, max=size - 1)] == ids[anchors[q // 16]])
        return context | ((kv >= size) & ((kv - size) // 16 == q // 16))

    yield "DFlash training, documents of 1500", packed, blocks * 16, size + blocks * 16
    yield "causal", causal, size, size
    yield "causal window 1024", window, size, size
    yield "document causal", document, size, size
    yield "DFlash training", dflash, blocks * 16, size + blocks * 16
    yield "DFlash training, window 2048", sliding, blocks * 16, size + blocks * 16


def measure(make):
    make()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        make()
        torch.cuda.synchronize()
        best = min(best, 1e3 * (time.perf_counter() - start))
    return best, torch.cuda.max_memory_allocated() - before


def report(name, mask, queries, keys, regime):
    row = {"bench": "tile_map", "case": f"{name}, {queries} x {keys}", "pass": "rows and columns", "regime": regime, "peer": "FlexAttention create_block_mask"}
    try:
        torch._dynamo.reset()  # each row from a cold compiler, as a process that has one mask of one length
        create = torch.compile(create_block_mask, dynamic=False) if regime == "compiled" else create_block_mask
        start = time.perf_counter()
        create(mask, None, None, queries, keys, device="cuda")
        torch.cuda.synchronize()
        row["first_ms"] = 1e3 * (time.perf_counter() - start)
        row["ms"], row["peak_bytes"] = measure(lambda: create(mask, None, None, queries, keys, device="cuda"))
    except Exception as error:  # out of memory is a result
        row["failed"] = type(error).__name__
        torch.cuda.empty_cache()
    row.update(gpu=torch.cuda.get_device_name(), torch=torch.__version__, date=os.environ.get("BENCH_DATE", ""), command="block_mask_peer.py", commit=os.environ.get("BENCH_COMMIT", ""))
    print(json.dumps(row), flush=True)


def main():
    for size in (2048, 8192, 16384, 32768, 131072):
        name, mask, queries, keys = next(masks(size))
        for regime in ("eager", "compiled"):
            report(name, mask, queries, keys, regime)
    for size in (8192, 2048, 16384, 32768):
        for name, mask, queries, keys in list(masks(size))[1:]:
            report(name, mask, queries, keys, "eager")
            if size == 8192:
                report(name, mask, queries, keys, "compiled")


main()
