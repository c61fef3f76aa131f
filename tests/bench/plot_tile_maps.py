"""Draws the cost of tile maps against size as an SVG, from the JSON lines of tile_map_bench and block_mask_peer.py.

    python3 tests/bench/plot_tile_maps.py "DFlash training" ROWS.jsonl MORE.jsonl >docs/benchmarks/tile_maps_dflash.svg

Later files win over earlier ones. Compiled calls that fell back to eager (their peak is no smaller) are left out.
"""
import sys

from plot import chart, rows_of

SERIES = [  # regime, peer, what is drawn, its name, colour
    ("eager", True, "ms", "create_block_mask, eager", "#b5651d"),
    ("compiled", True, "ms", "create_block_mask, compiled", "#e0a458"),
    ("one CPU core", False, "with_columns_ms", "samite, one CPU core", "#4878a8"),
    ("captured graph", False, "ms", "samite, GPU, with bit tiles", "#2a9d5c"),
]


def points(rows, case, regime, peer, field):
    found = {}
    eager_peak = {row["case"]: row["peak_bytes"] for row in rows if row["regime"] == "eager" and "peak_bytes" in row}
    for row in rows:
        name, _, size = row["case"].rpartition(", ")
        fell_back = regime == "compiled" and row.get("peak_bytes", 0) >= eager_peak.get(row["case"], float("inf"))
        if name == case and row["regime"] == regime and ("peer" in row) == peer and field in row and not fell_back:
            found[int(size.split(" x ")[1])] = row[field]
    return sorted(found.items())


def label(value):
    return f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"


case, paths = sys.argv[1], sys.argv[2:]
rows = rows_of(paths, "tile_map")
drawn = [(name, colour, points(rows, case, regime, peer, field)) for regime, peer, field, name, colour in SERIES]
if not any(found for _, _, found in drawn):
    sys.exit(f"no row of {case!r} in {paths}")
print(chart(f"{case}: time of a tile map against keys (queries: half as many), 128 x 128 tiles", "keys", drawn, lambda k: f"{k // 1024}k", label))
