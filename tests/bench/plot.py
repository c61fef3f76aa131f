"""Line charts on logarithmic axes, as SVG: what the plots of docs/benchmarks share."""
import json
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 60, 190, 30, 46


def rows_of(paths, bench):
    """JSON lines of one bench; later files come later."""
    found = []
    for path in paths:
        with open(path) as lines:
            found += [row for row in (json.loads(line) for line in lines if line.startswith("{")) if row["bench"] == bench]
    return found


def chart(title, x_title, series, x_label, y_label, y_ticks=None):
    """series: (name, colour, [(x, y), ...]) each; x is marked where there are points, y at powers of 10 or at y_ticks. Returns the SVG's text."""
    series = [s for s in series if s[2]]
    xs = sorted({x for _, _, found in series for x, _ in found})
    ys = [y for _, _, found in series for _, y in found]
    ticks = y_ticks or [10.0**p for p in range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))) + 1)]
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])

    def x(value):
        return LEFT + (math.log2(value) - math.log2(xs[0])) / max(1e-9, math.log2(xs[-1]) - math.log2(xs[0])) * (WIDTH - LEFT - RIGHT)

    def y(value):
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', f'<text x="{LEFT}" y="18" font-size="13">{title}</text>']
    for tick in ticks:
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{y_label(tick)}</text>')
    last = -1e9
    for value in xs:
        if x(value) - last > 30:  # room for its text
            last = x(value)
            out.append(f'<text x="{last:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x_label(value)}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{x_title}</text>')
    for name, colour, found in series:
        path_text = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in found)
        out.append(f'<polyline points="{path_text}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in found]
    for i, (name, colour, found) in enumerate(sorted(series, key=lambda s: -s[2][-1][1])):
        out.append(f'<circle cx="{WIDTH - RIGHT + 16}" cy="{TOP + 16 + 20 * i}" r="4" fill="{colour}"/><text x="{WIDTH - RIGHT + 26}" y="{TOP + 20 + 20 * i}">{name}</text>')
    return "\n".join(out + ["</svg>"])
