# SPDX-License-Identifier: Apache-2.0
"""Compile every kernel for sm_90 without a GPU and check its machine code against its promises.

python -m sqkernels.compile                          # a table of all variants; exit code 1 where a promise is broken
python -m sqkernels.compile --only shift --jobs 1    # those with a word in their name
python -m sqkernels.compile --variants MODULE        # another module's `variants()`
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable

import triton

from sqkernels.compile.checking import Result, check, load
from sqkernels.launch import INTERPRETED

OURS = "sqkernels.compile.variants"
FORM = "{:<18} {:<42} {:>5} {:>9} {:>8} {:>7} {:>6}  {}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table to stdout and faults to stderr. 0: all promises kept; 1: a fault; 2: bad arguments."""
    parser = argparse.ArgumentParser(
        "sqkernels.compile", description="Compile every kernel for sm_90 without a GPU."
    )
    parser.add_argument(
        "--variants", default=OURS, metavar="MODULE", help="whose variants() are compiled (default: ours)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="those variants with TEXT in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    given = parser.parse_args(arguments)
    if INTERPRETED:
        parser.error("TRITON_INTERPRET is set, under which nothing is compiled; unset it")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: give 1 or more")
    try:
        variants = load(given.variants)
    except (ImportError, AttributeError) as error:
        parser.error(f"--variants {given.variants}: {error}; give a module with a function variants()")
    chosen = [number for number, variant in enumerate(variants) if given.only in variant.name]
    if not chosen:
        known = ", ".join(sorted({variant.launch.kernel.__name__ for variant in variants}))
        parser.error(f"--only {given.only}: in no variant's name; the kernels are {known}")
    began = time.perf_counter()
    faults = print_table(check(given.variants, chosen, min(given.jobs, len(chosen))))
    took = time.perf_counter() - began
    print(f"triton {triton.__version__}, sm_90: {len(chosen)} variants in {took:.0f} s, {len(faults)} faults")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def print_table(results: Iterable[Result]) -> list[str]:
    """Print one row per variant to stdout as its result arrives; return all faults."""
    print(FORM.format("kernel", "variant", "warps", "registers", "shared B", "stack B", "s", "keeps"))
    faults: list[str] = []
    for kernel, case, warps, code, kept, own in results:
        numbers = ("-",) * 4
        if code is not None:
            numbers = (str(code.registers), str(code.shared), str(code.stack), f"{code.seconds:.2f}")
        print(FORM.format(kernel, case, warps, *numbers, ", ".join(kept) + " BROKEN" * bool(own)), flush=True)
        faults += own
    return faults


if __name__ == "__main__":
    sys.exit(main())
