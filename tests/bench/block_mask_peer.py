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


def main():
    compiled = torch.compile(create_block_mask)
    for size in (2048, 8192, 16384, 32768, 131072):
        for name, mask, queries, keys in masks(size):
            for regime, create in (("eager", create_block_mask), ("compiled", compiled)):
                if regime == "compiled" and size > 16384:
                    continue
                row = {"bench": "tile_map", "case": f"{name}, {queries} x {keys}", "pass": "rows", "regime": regime, "peer": "FlexAttention create_block_mask"}
                try:
                    start = time.perf_counter()
                    create(mask, None, None, queries, keys, device="cuda")
                    torch.cuda.synchronize()
                    row["first_ms"] = 1e3 * (time.perf_counter() - start)
                    row["ms"], row["peak_bytes"] = measure(lambda: create(mask, None, None, queries, keys, device="cuda"))
                except Exception as error:  # out of memory is a result
                    row["failed"] = type(error).__name__
                    torch.cuda.empty_cache()
                row.update(gpu=torch.cuda.get_device_name(), torch=torch.__version__, date=os.environ.get("BENCH_DATE", ""), command="block_mask_peer.py")
                print(json.dumps(row), flush=True)


main()
