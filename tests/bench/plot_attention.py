"""Draws the sweeps of attention_bench and attention_peers.py as SVGs: TFLOP/s on kept pairs against length, or against density.

    python3 tests/bench/plot_attention.py lengths forward ROWS.jsonl >docs/benchmarks/attention_lengths_forward.svg
    python3 tests/bench/plot_attention.py windows backward ROWS.jsonl >docs/benchmarks/attention_windows_backward.svg

From an idle card (burst). Peers' rows take the FLOPs of the same case.
"""
import re
import sys

from plot import chart, rows_of

COLOURS = {"samite": "#2a9d5c", "sdpa-cudnn": "#4878a8", "sdpa-flash": "#e0a458", "flex": "#b5651d"}
NAMES = {"sdpa-cudnn": "cuDNN", "sdpa-flash": "FlashAttention 2", "flex": "FlexAttention"}

kind, direction, paths = sys.argv[1], sys.argv[2], sys.argv[3:]
pattern = re.compile(r"sweep causal S(\d+) B\d+ H16 D128$" if kind == "lengths" else r"sweep window (\d+) ")
rows = [row for row in rows_of(paths, "attention") if row.get("pass") == direction and "ms" in row and pattern.match(row["case"])]
ours = {row["case"]: row for row in rows if "peer" not in row}
found = {}
for row in rows:
    own = ours[row["case"]]
    at = int(pattern.match(row["case"]).group(1)) if kind == "lengths" else own["density"]
    found.setdefault(row.get("peer", "samite"), {})[at] = own["tflops_kept"] * own["ms"] / row["ms"]
series = [(NAMES.get(name, name), COLOURS[name], sorted(points.items())) for name, points in found.items()]
what = "length, causal, 16384 tokens or one sequence" if kind == "lengths" else "density, windows at 16384 tokens"
print(chart(f"Attention {direction}, 16 heads of 128 channels, bf16: TFLOP/s on kept pairs against {what}", "tokens" if kind == "lengths" else "density", series,
            (lambda s: f"{s}" if s < 1024 else f"{s // 1024}k") if kind == "lengths" else lambda d: f"{d:.3g}", lambda t: f"{t:g}", [50, 100, 200, 400, 800]))
