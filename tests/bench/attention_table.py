#!/usr/bin/env python3
"""Joins rows of attention_bench with its peers' of the same run: tables for docs/benchmarks.md, or rows in the schema of docs/benchmarks.

    python3 tests/bench/attention_table.py ROWS.jsonl... >tables.md
    python3 tests/bench/attention_table.py --rows DRIVER ROWS.jsonl... >docs/benchmarks/attention_h200_DATE.jsonl

A peer is the one with the shortest time, burst or sustained. The first ratio is that time over our burst, the second sustained over sustained. Executed: TFLOP/s on the
tiles that our kernels compute, over those of causal at the same head dim; "tiles" are those over the ones that hold a kept pair.
"""
import json
import re
import sys

arguments = sys.argv[1:]
driver = None
if arguments[0] == "--rows":
    driver, arguments = arguments[1], arguments[2:]
rows = []
for path in arguments:
    with open(path, encoding="utf-8") as lines:
        rows += [row for row in map(json.loads, filter(lambda line: line.startswith("{"), lines)) if row["bench"] == "attention" and "ms" in row]
ours = [row for row in rows if "peer" not in row]
peers = {}
for row in rows:
    if "peer" in row:
        key = row["case"], row["pass"]
        best = min(row["ms"], row["ms_sustained"])
        if key not in peers or best < min(peers[key]["ms"], peers[key]["ms_sustained"]):
            peers[key] = row


def head_dim(case):
    return re.search(r"D(\d+)", case).group(1)


dense = {(head_dim(row["case"]), row["pass"]): row["tflops_executed"] for row in ours if row["case"].startswith("causal S8192") and "/" not in row["case"].split(" D")[0]}
if driver is not None:
    for row in ours:
        peer = peers.get((row["case"], row["pass"]))
        for regime, suffix in (("burst", ""), ("sustained", "_sustained")):
            out = {"bench": "attention", "case": row["case"], "pass": row["pass"], "regime": regime, "ms": row["ms" + suffix], "tflops_kept": row["tflops_kept" + suffix]}
            if not suffix:
                out |= {name: row[name] for name in ("tflops_executed", "pairs_executed", "pairs_of_tiles")}
            out |= {"density": row["density"], "worst_error": row["worst_error"]}
            if peer:
                best = min(peer["ms"], peer["ms_sustained"]) if not suffix else peer["ms_sustained"]
                out |= {"peer": peer["peer"], "peer_ms": best, "ratio": round(best / row["ms" + suffix], 3)}
            print(json.dumps(out | {name: row[name] for name in ("gpu", "date", "command", "commit")} | {"driver": driver}))
    sys.exit()
for name in ("forward", "backward"):
    print(f"| case, {name} | samite burst / sustained ms | peer burst / sustained ms | ratio | kept TFLOP/s | executed | tiles |\n|---|---|---|---|---|---|---|")
    for row in ours:
        if row["pass"] != name:
            continue
        peer = peers.get((row["case"], name))
        theirs = f"{peer['peer']} {peer['ms']:.3f} / {peer['ms_sustained']:.3f}" if peer else ""
        ratio = f"{min(peer['ms'], peer['ms_sustained']) / row['ms']:.2f}; {peer['ms_sustained'] / row['ms_sustained']:.2f}" if peer else ""
        of_dense = f"{row['tflops_executed'] / dense[head_dim(row['case']), name]:.2f}" if row["tflops_executed"] and dense.get((head_dim(row["case"]), name)) else ""
        tiles = f"{row['pairs_executed'] / row['pairs_of_tiles']:.2f}" if row["pairs_executed"] else ""
        print(f"| {row['case']} | {row['ms']:.3f} / {row['ms_sustained']:.3f} | {theirs} | {ratio} | {row['tflops_kept']:.0f} | {of_dense} | {tiles} |")
    print()
