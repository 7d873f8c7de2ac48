"""``python -m tb.formal [TEXT]``: run every proof whose name contains TEXT, two at a time."""

import concurrent.futures
import os
import sys
import time

from golden import command
from hdl.arguments import whole
from tb.formal import forks, pages, streams, swap
from tb.formal.prove import Proof, Result, check


def _line(result: Result) -> str:
    proof = result.proof
    engine = "abc &sat by cases" if proof.mode == "cases" else "smtbmc yices"
    words = [f"{proof.name:34} depth {proof.depth:2}  {engine}  {result.seconds:5.1f} s"]
    if proof.defect:
        words.append(f"{result.status} as planted ({proof.defect})" if result.ok
                     else f"{result.status}, BUT A DEFECT IS PLANTED: {proof.defect}")  # fmt: skip
    else:
        words.append(result.status + (f", covers {result.covers}" if not result.ok else ""))
    if not result.ok and result.detail:
        words.append(result.detail)
    return "  ".join(words)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.formal", description=__doc__)
    parser.add_argument("text", nargs="?", default="", help="part of the proofs' names")
    parser.add_argument("--jobs", type=whole(), default=min(4, os.cpu_count() or 1))
    parser.add_argument("--long", action="store_true", help="proofs that take minutes, too")
    options = parser.parse_args(arguments)
    rooms = streams, swap, pages, forks
    proofs = [proof for room in rooms for proof in room.PROOFS]
    proofs += [proof for room in rooms for proof in room.DEFECTS]
    chosen: list[Proof] = [
        proof for proof in proofs if options.text in proof.name and (options.long or not proof.long)
    ]
    if not chosen:
        print(f"tb.formal: no proof is called {options.text!r}", file=sys.stderr)
        return 2
    start, bad = time.perf_counter(), 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(check, proof) for proof in chosen]
        try:
            for number, future in enumerate(concurrent.futures.as_completed(running), 1):
                result = future.result()
                bad += not result.ok
                print(f"[{number:2}/{len(chosen)}] {_line(result)}", flush=True)
        except BaseException:  # after Ctrl-C no further proof begins
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    proved = sum(not proof.defect for proof in chosen)
    print(
        f"{len(chosen) - bad} of {len(chosen)} as expected: {proved} proofs, "
        f"{len(chosen) - proved} planted defects, {time.perf_counter() - start:.0f} s"
    )
    left = [
        f"{proof.name} ({', '.join(proof.only) or 'all cases, covers or cycles'})"
        for proof in proofs
        if options.text in proof.name and proof.long and proof not in chosen
    ]
    if left:
        print(f"not run without --long: {'; '.join(left)}")
    return 1 if bad else 0


if __name__ == "__main__":
    command.run("tb.formal", main)
