"""Fit the cost model to measured points and write a calibration file for `kvist predict` and the simulator.

Without --points: the points that kvist brings. Error bars come from rows held out by their hash; the table shows them
per device, engine and model, beside the errors on models that were left out as a whole.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.report.written_file import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the points, the file to write and the form of the report."""
    parser.add_argument("--points", type=Path, metavar="FILE.csv", help="measured points (default: those of kvist)")
    parser.add_argument(
        "--output", type=Path, default=Path("calibration.json"), metavar="FILE", help="default: calibration.json"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE.md", help="write the table of errors here")
    add_output_arguments(parser, model=False)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments, "output", "markdown")
    # Here, because `--help` must not wait for NumPy.
    import msgspec

    from kvist.bench.calibration.calibrate import calibrate
    from kvist.bench.calibration.fit_report import error_table, markdown_tables
    from kvist.bench.calibration.points import SHIPPED, read_points

    rows = read_points(arguments.points)
    source = SHIPPED if arguments.points is None else arguments.points.name
    result = calibrate(
        rows, source=source, is_quick=arguments.quick, show=lambda line: print(line, file=sys.stderr, flush=True)
    )
    encoded = msgspec.json.format(msgspec.json.encode(result.calibration), indent=1)
    write_whole(arguments.output, encoded.decode() + "\n")
    table = error_table(result.rows)
    print("\n".join(table.lines()))
    print(f"wrote {arguments.output}")
    if arguments.markdown is not None:
        write_whole(arguments.markdown, markdown_tables(table, result.transfers))
    if arguments.json is not None:
        write_json(arguments.json, result_document("calibrate", {"rows": [asdict(row) for row in result.rows]}))
    if arguments.report is not None:
        from kvist.cli.predict_report import calibration_page

        calibration_page(table, result.rows).write(arguments.report)
    return 0
