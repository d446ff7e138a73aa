"""Times of a step on links of three rates, from committed runs of `step.py` and `block.py`."""

import json
import pathlib
import statistics

from theme import draw

MEASURED = pathlib.Path(__file__).parents[2] / "benchmarks/measured"
ALONE = "no communication"
RATES = {"10gbit": "10 Gbit/s", "1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
# Rows of the files, and what they are called here. Horovod's own come first.
STEPS = {
    "Horovod fp32": "Horovod, float32",
    "Horovod fp16": "Horovod, float16",
    "1-bit": "OneBit",
    "threshold, Golomb-Rice": "Threshold",
}
BLOCKS = {"SGD, 1-bit, every 16": "BlockMomentum, 16 steps"}
NUM_PEERS = 2


def tables(name):
    """Returns the rows of a file, by rate and name: dictionary of dictionaries."""
    content = json.loads((MEASURED / f"{name}.json").read_text())
    return {table["rate"]: {row["row"]: row for row in table["rows"]} for table in content["rates"]}


def times(rate):
    """Returns times of steps, in steps without communication: dictionary by label."""
    steps, blocks = tables("step")[rate], tables("block")[rate]
    alone = steps[ALONE]["round_medians_seconds"]
    by_label = {}
    for row, label in STEPS.items():
        rounds = zip(steps[row]["round_medians_seconds"], alone, strict=True)
        by_label[label] = statistics.median(step / computation for step, computation in rounds)
    for row, label in BLOCKS.items():
        by_label[label] = blocks[row]["ratios"]["median"]
    return by_label


def picture(figure, theme):
    panels = figure.subplots(1, len(RATES), sharey=True, sharex=True)
    for axes, (rate, name) in zip(panels, RATES.items(), strict=True):
        measured = times(rate)
        for place, (label, ratio) in enumerate(measured.items()):
            color = theme.faint if place < NUM_PEERS else theme.blue
            axes.barh(label, ratio, color=color, height=0.7)
            decimals = 1 if ratio > 10 else 2
            axes.text(ratio * 1.08, place, f"{ratio:.{decimals}f}", va="center")
        axes.axvline(1, color=theme.orange, linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(0.8, 250)
        axes.set_xticks([1, 10, 100], ["1", "10", "100"])
        axes.minorticks_off()
        axes.set_title(name)
    panels[0].invert_yaxis()
    figure.supxlabel("time of a step, in steps without communication", size=12)


draw("step_times", (7.3, 3.1), picture)
