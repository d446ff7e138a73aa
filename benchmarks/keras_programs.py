"""Measures results of the documents' Keras programs on two workers, ported in three ways.

Each program trains with every seed: unchanged in one process, and ported on two workers, in a
strategy, over Horovod and in blocks. The figure is the result on held-out data that it prints.
"""

import argparse
import pathlib
import sys
import tempfile

from report import Spread, machine_facts, print_machine_facts, print_table, write_json

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tests.support.ports import ports_of, run_all  # noqa: E402

_PAGE = "keras_programs"
_WAYS = ["one process", "strategy", "horovod", "blocks"]
_SEED = "keras.utils.set_random_seed({})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ports = list(ports_of(_PAGE))
    names = sorted({port.before.stem for port in ports})
    parser.add_argument("--programs", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--output", default="results/keras_programs.json")
    arguments = parser.parse_args()
    facts = machine_facts()
    print_machine_facts(facts)
    ports = [port for port in ports if port.before.stem in arguments.programs]
    figures = {way: _figures(way, ports, arguments) for way in _WAYS}
    rows = []
    for name in arguments.programs:
        spreads = [Spread.of(figures[way][name]) for way in _WAYS]
        rows.append([name, *(spread.text(3) for spread in spreads)])
    print_table("held-out, median [quartiles] over seeds", ["program", *_WAYS], rows)
    write_json(arguments.output, {"machine": facts, "figures": figures})


def _figures(way, ports, arguments):
    """Trains the programs in one way. Returns their results by name: a list by seed."""
    if way == "one process":
        engine, world_size = "alone", 1
        texts = {port.before.stem: port.before.read_text() for port in ports}
    else:
        chosen = [port for port in ports if port.name.endswith(f"_{way}.py")]
        engine, world_size = chosen[0].engine, 2
        texts = {port.before.stem: port.text for port in chosen}
    figures = {name: [] for name in arguments.programs}
    for seed in range(1, arguments.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / f"{name}.py" for name in arguments.programs]
            for path in paths:
                path.write_text(_with_seed(texts[path.stem], seed))
            first, *_ = run_all(engine, world_size, paths, folder)
        for path, figure in zip(paths, first.held_out, strict=True):
            figures[path.stem].append(figure)
        print(f"{way}, seed {seed}: {first.held_out}", flush=True)
    return figures


def _with_seed(text, seed):
    if text.count(_SEED.format(1)) != 1:
        raise ValueError(
            f"The program sets its seed in one line: {_SEED.format(1)}. Received: {text}"
        )
    return text.replace(_SEED.format(1), _SEED.format(seed))


if __name__ == "__main__":
    main()
