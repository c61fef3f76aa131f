"""Draws the cost of tile maps against size as an SVG, from the JSON lines of tile_map_bench and block_mask_peer.py.

    python3 tests/bench/plot_tile_maps.py "DFlash training" ROWS.jsonl MORE.jsonl >docs/benchmarks/tile_maps_dflash.svg

Later files win over earlier ones. Compiled calls that fell back to eager (their peak is no smaller) are left out.
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 60, 190, 30, 46
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


def main():
    case, paths = sys.argv[1], sys.argv[2:]
    rows = []
    for path in paths:
        with open(path) as lines:
            rows += [row for row in (json.loads(line) for line in lines if line.startswith("{")) if row["bench"] == "tile_map"]
    drawn = [(name, colour, points(rows, case, regime, peer, field)) for regime, peer, field, name, colour in SERIES]
    keys = sorted({k for _, _, found in drawn for k, _ in found})
    times = [ms for _, _, found in drawn for _, ms in found]
    if not times:
        sys.exit(f"no row of {case!r} in {paths}")
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(k):
        return LEFT + (math.log2(k) - math.log2(keys[0])) / max(1e-9, math.log2(keys[-1]) - math.log2(keys[0])) * (WIDTH - LEFT - RIGHT)

    def y(ms):
        return HEIGHT - BOTTOM - (math.log10(ms) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', f'<text x="{LEFT}" y="18" font-size="13">{case}: time of a tile map against keys (queries: half as many), 128 x 128 tiles</text>']
    for power in range(low, high + 1):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end">{label(10.0**power)}</text>')
    for k in keys:
        out.append(f'<text x="{x(k):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{k // 1024}k</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">keys</text>')
    for name, colour, found in drawn:
        if not found:
            continue
        path_text = " ".join(f"{x(k):.1f},{y(ms):.1f}" for k, ms in found)
        out.append(f'<polyline points="{path_text}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(k):.1f}" cy="{y(ms):.1f}" r="3" fill="{colour}"/>' for k, ms in found]
    for i, (name, colour, found) in enumerate(sorted((d for d in drawn if d[2]), key=lambda d: -d[2][-1][1])):
        out.append(f'<circle cx="{WIDTH - RIGHT + 16}" cy="{TOP + 16 + 20 * i}" r="4" fill="{colour}"/><text x="{WIDTH - RIGHT + 26}" y="{TOP + 20 + 20 * i}">{name}</text>')
    print("\n".join(out + ["</svg>"]))


main()
