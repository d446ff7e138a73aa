"""Prints a table of the counters that ncu has read: one row for each kernel.

python tools/gpu_counters.py FILE, which has the output of `ncu --csv --page raw`.
"""

import csv
import re
import sys

# The columns: counter, title, and what to divide by.
COLUMNS = [
    ("gpu__time_duration.sum", "us"),
    ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM %"),
    ("dram__bytes_read.sum", "MB read"),
    ("dram__bytes_write.sum", "MB written"),
    ("lts__t_sectors_op_write.sum", "sectors written"),
    ("sm__inst_executed.sum", "instructions"),
    ("smsp__issue_active.avg.pct_of_peak_sustained_active", "issue %"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "warps %"),
    ("launch__registers_per_thread", "registers"),
]
# Factors to the units of the titles.
UNITS = {"ns": 1e-3, "us": 1, "ms": 1e3, "byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}


def short(name):
    """Returns the name of a kernel without its namespaces and arguments."""
    return re.sub(r"tf_onebit::|gpu::|<?unnamed>::|void |\(int\)", "", name).split("(")[0]


def main():
    with open(sys.argv[1]) as file:
        lines = [line for line in file if line.startswith('"')]
    header, units, *rows = csv.reader(lines)
    table = [["kernel", "grid", *(title for _, title in COLUMNS)]]
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        unit_of = dict(zip(header, units, strict=True))
        figures = [
            f"{float(cells[name].replace(',', '')) * UNITS.get(unit_of[name], 1):.6g}"
            for name, _ in COLUMNS
        ]
        table.append([short(cells["Kernel Name"]), cells.get("Grid Size", ""), *figures])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


if __name__ == "__main__":
    main()
