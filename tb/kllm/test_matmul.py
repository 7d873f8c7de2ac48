"""KllmMatmul between models of its neighbours: every word of every stream.

Whether a command is refused, and why, is golden.kllm.machine's word: a machine without weights
says BUS_ERROR of every matmul that would run. What the lanes answer is random.

Shown to fail:

- a range check that forgets the stride;
- the replay limit forgotten;
- a refused packet that unloads the one before it;
- a bad packet that counts as loaded;
- the packet's kind ignored;
- only the last token's descriptor looked at;
- masks not cut at the length;
- words after the outputs kept;
- a DIRECT that does not wait for the writes before it;
- commands that do not overlap;
- a silent job not filled;
- OVERFLOW kept of one;
- statuses of lane 0 only;
- source rows of DIRECT without their stride;
- a row that counts before the status of a silent job;
- void work that reads a slot, writes a row, or shows a bit of lanes or of the supply;
- a base that is read before the row is written, or whose words go to the lanes.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.kllm.config import LaneShape, MachineConfig, PortShape, SlotShape, VectorShape
from golden.kllm.format import Status, integer_packet_length, kmeans_packet_length
from golden.kllm.functional import Slot
from golden.kllm.isa import (
    Codebook,
    CommandStatus,
    MatmulMode,
    Opcode,
    encode,
)
from golden.kllm.issue import weight_address
from golden.kllm.machine import Machine
from golden.words import join, layout_word, layout_words, unpack_ints
from hdl.kllm.engine import descriptor_layout, entry_row_layout
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.matmul.config import KllmMatmulConfig
from hdl.kllm.matmul.engine import KllmMatmul
from hdl.kllm.matmul.payloads import supply_job_layout
from tb.kllm.support.commands import command_payload, row_of, weights_requested
from tb.simulate.run import simulate

NAN_ROW = row_of([0x7E00] * 16)
LANE = {"k_max": 256, "outliers_max": 40}
CONFIGS = {
    "two_rows": KllmMatmulConfig(
        lanes=2, lane=KllmPeLaneConfig(columns=32, **LANE), vectors=VectorShape(rows=300),
        slot=SlotShape(slots=6, elements=200, outliers_max=40), replay_beats=6,
    ),
    "narrow_beats": KllmMatmulConfig(
        lanes=3, lane=KllmPeLaneConfig(columns=16, elements=4, bits_a=3, bits_b=3, integer_bits=4,
        macs=16, **LANE), vectors=VectorShape(rows=257), replay_beats=12,
        slot=SlotShape(slots=5, elements=70, outliers_max=40, bits_a=3, integer_bits=4),
    ),
    "three_rows": KllmMatmulConfig(
        lanes=1, lane=KllmPeLaneConfig(columns=48, elements=8, bits_a=2, bits_b=4, integer_bits=0,
        macs=16, **LANE), vectors=VectorShape(rows=300), replay_beats=11,
        slot=SlotShape(slots=6, elements=100, outliers_max=40, bits_a=2, integer_bits=0),
    ),
    "one_element": KllmMatmulConfig(
        lanes=4, lane=KllmPeLaneConfig(columns=16, elements=1, macs=16, **LANE),
        vectors=VectorShape(rows=256), slot=SlotShape(slots=5, elements=48, outliers_max=40),
        replay_beats=40,
    ),
}  # fmt: skip
CONFIGS["rows"] = dataclasses.replace(
    CONFIGS["two_rows"],
    lane=dataclasses.replace(CONFIGS["two_rows"].lane, packet_words=16),
)
CONFIGS["based"] = dataclasses.replace(CONFIGS["narrow_beats"], based=True)
CONFIGS["based_rows"] = dataclasses.replace(CONFIGS["rows"], based=True)
SOURCES_END = 64  # rows below hold codebooks and tokens of DIRECT, rows above destinations
QUIET = Status.OVERFLOW | Status.SCALE_NONFINITE
SINKS = (
    "status", "write", "slot_slot", "slot_entry_request", "slot_outlier_request", "row_request",
    "job", "a", "x", "codebook", "supply", "supply_rms",
)  # fmt: skip
LISTS = ("command", "release", "answers", "supplied", "writes_before", "reads_behind")


def row_words(row: int) -> np.ndarray:
    return np.frombuffer(row.to_bytes(32, "little"), "<u2").astype(np.int64)


class Author:
    """Writes a program: commands, and every word that they must give."""

    def __init__(self, config, rng):
        self.config, self.rng, self.lane = config, rng, config.lane
        self.vector = [row_of(rng.integers(0, 0x3C01, 16)) for _ in range(config.vectors.rows)]
        self.first = list(self.vector)
        self.words = {name: [] for name in (*SINKS, *LISTS)}
        self.tables = {"slot_descriptor": {}, "slot_entries": {}, "slot_outlier": {}}
        lane = self.lane
        self.machine = Machine(
            MachineConfig(
                lane=LaneShape(lanes=config.lanes, columns=lane.columns, elements=lane.elements,
                               bits_b=lane.bits_b),
                slot=dataclasses.replace(config.slot, integer_bits=lane.integer_bits or 8),
                vectors=config.vectors, ports=PortShape(ports=1, bits=32),
                replay_beats=config.replay_beats, batch=1,
                experts=int(config.based),
            )
        )  # fmt: skip
        self.layout = entry_row_layout(lane.bits_a, lane.integer_bits)
        self.held = {}
        self.bad: Codebook | None = None  # the kind of the latest packet, if a word of it was bad

    def slot(self, number, length, integer=False, valid=True, outliers=None):
        """Fill a slot; the entries after its length keep whatever was there."""
        rng, lane = self.rng, self.lane
        bits = lane.integer_bits if integer else lane.bits_a
        most = min(length, lane.outliers_max) if outliers is None else outliers
        count = 0 if integer else int(rng.integers(0, most + 1)) if outliers is None else outliers
        value = rng.integers(0, 1 << bits, length)
        where = np.sort(rng.permutation(length)[:count])
        mask = np.zeros(length, dtype=bool)
        mask[where] = True
        words = rng.integers(0, 0x7C00, count)
        rms = int(rng.integers(0x3D000000, 0x41000000))
        scale = int(rng.integers(1, 0x7C00))
        self.tables["slot_descriptor"][number,] = layout_word(
            descriptor_layout, valid=valid, integer=integer, length=length, outliers=count,
            scale=scale, rms_reciprocal=rms, mean=5,
        )  # fmt: skip
        padded = np.zeros(-(-length // 16) * 16, dtype=np.int64)
        padded[:length] = value
        marks = rng.integers(0, 2, len(padded))
        marks[:length] = mask
        for row in range(len(padded) // 16):
            self.tables["slot_entries"][number, row] = layout_word(
                self.layout, value=padded[16 * row : 16 * row + 16],
                outlier=marks[16 * row : 16 * row + 16],
            )  # fmt: skip
        for n, word in enumerate(words.tolist()):
            self.tables["slot_outlier"][number, n] = word
        self.held[number] = padded, mask, words.tolist(), scale, rms
        x = torch.zeros(length, dtype=torch.int64)
        x[torch.from_numpy(mask)] = torch.from_numpy(words)
        self.machine.slots[number] = (
            Slot(
                index=torch.from_numpy(value), outlier=torch.from_numpy(mask), words=x, scale=scale,
                integer=integer, rms_reciprocal=rms, mean=5,
            )
            if valid
            else None
        )  # fmt: skip

    def poke(self, row, words):
        """Before the program begins."""
        assert not self.words["command"]
        self.vector[row] = self.first[row] = row_of(words)

    def _command(self, opcode, operands, aborted=False) -> CommandStatus:
        """Append a command; the status that golden gives it where no weights are.

        aborted: an abort ends it before it may run. The status is that without the abort, and a
        codebook changes nothing.
        """
        words = encode(opcode, 0, {}, operands)
        self.words["command"].append(command_payload(words))
        self.words["release"].append(int(aborted))
        if aborted and opcode != Opcode.MATMUL:
            return CommandStatus.ABORTED
        self.before = len(self.words["write"])  # writes of the commands before
        vector = np.stack([row_words(row) for row in self.vector])
        self.machine.state.vector[:] = torch.from_numpy(vector)
        integer = operands.get("kind") == Codebook.INTEGER or (
            operands.get("mode") == MatmulMode.INTEGER
        )
        if integer and not self.lane.integer_bits:
            return CommandStatus.RANGE
        return self.machine.step(words).status

    def _end(self, status):
        self.words["status"].append(int(status))
        self.words["writes_before"].append(len(self.words["write"]))

    def unknown(self, opcode):
        """A command of another unit."""
        self.words["command"].append(int(opcode))
        self.words["release"].append(0)
        self._end(CommandStatus.MALFORMED)
        return CommandStatus.MALFORMED

    def codebook(self, src, kind, aborted=False):
        status = self._command(Opcode.LANE_CODEBOOK, {"src": src, "kind": int(kind)}, aborted)
        if aborted:
            self._end(status)
            return status
        lane = self.lane
        count = (
            kmeans_packet_length(lane.bits_a, lane.bits_b)
            if kind == Codebook.KMEANS
            else integer_packet_length(lane.bits_b)
        )
        rows = -(-count // 16)
        integer = kind == Codebook.INTEGER and not lane.integer_bits
        if src + rows <= self.config.vectors.rows and not integer:
            self.bad = Codebook(kind) if status else None
            self._read(range(src, src + rows))
            words = np.concatenate([row_words(self.vector[r]) for r in range(src, src + rows)])
            if lane.packet_words > 1:  # words of the last row after the packet are there too
                padded = words.reshape(-1, lane.packet_words)
                last = np.arange(len(padded)) == len(padded) - 1
                found = layout_words(lane.packet_layout, word=padded, last=last)
                self.words["codebook"] += unpack_ints(found)
            else:
                self.words["codebook"] += [
                    join((word, 16), (n == count - 1, 1)) for n, word in enumerate(words[:count])
                ]
        self._end(status)
        return status

    def weight_base(self, src, aborted=False):
        """The base of the MATMULs that follow, of a row; its words go to no lane."""
        status = self._command(Opcode.WEIGHT_BASE, {"src": src}, aborted)
        if not status:
            self._read([src])
        self._end(status)
        return status

    def _read(self, rows):
        self.words["row_request"] += rows
        self.words["reads_behind"] += [self.before] * len(rows)

    def matmul(self, silent=0, error=False, odd=0.3, first=False, aborted=False, **operands):
        """silent: lane status of the jobs without outputs, 0 where all answer.

        These are one random job, or every job from a random one on; ``first``: the first job.
        aborted: an abort ends it before it may run.
        """
        o = {
            "mode": 0, "slot": 0, "tokens": 1, "length": 16, "outputs": 16, "weights": 77,
            "dst": SOURCES_END, "stride": 0, "fold_norm": 0, "src": 0, "src_stride": 0,
            "based": 0,
        } | {name: int(value) for name, value in operands.items()}  # fmt: skip
        status = self._command(Opcode.MATMUL, o, aborted)
        requests, late = weights_requested(status, o["mode"], self.bad)
        if aborted:
            status = CommandStatus.ABORTED
        if not requests:
            self._end(status)
            return status
        void = status != CommandStatus.BUS_ERROR  # the weights were requested for nothing
        config, lane, rng = self.config, self.lane, self.rng
        direct, integer = o["mode"] == MatmulMode.DIRECT, o["mode"] == MatmulMode.INTEGER
        tokens, length = o["tokens"], o["length"]
        numbers = list(range(o["slot"], o["slot"] + tokens))
        rows, beats = -(-length // 16), -(-length // lane.elements)
        width = config.lanes * lane.columns
        groups = -(-o["outputs"] // width)
        if not direct and not aborted and not late:
            self.words["slot_slot"] += numbers
        self.words["supply"].append(
            layout_word(
                supply_job_layout, address=weight_address(o, self.machine.base), beats=beats,
                groups=groups, tokens=tokens, fold=o["fold_norm"],
            )
        )  # fmt: skip
        if o["fold_norm"]:
            self.words["slot_slot"] += numbers
            self.words["supply_rms"] += [self.held[number][4] for number in numbers]
        out_rows = -(-o["outputs"] // 16)
        y = np.zeros((tokens, groups * width), dtype=np.int64)
        jobs = range(groups * tokens)
        silent_jobs = set()
        if silent:
            at = 0 if first else int(rng.integers(0, len(jobs)))
            silent_jobs = {at} if first or rng.random() < 0.5 else set(jobs[at:])
        bits = CommandStatus(0)
        for job in jobs:
            group, token = divmod(job, tokens)
            self._offer_job(o, token, direct, integer, rows, beats, void)
            answer = rng.integers(0, 1 << 16, (config.lanes, lane.columns))
            y[token, group * width : (group + 1) * width] = answer.reshape(-1)
            status_words = [
                int(QUIET) & int(rng.integers(0, 1 << 9)) if rng.random() < odd else 0
                for _ in range(config.lanes)
            ]
            words = [
                [join((word, 16), (c == lane.columns - 1, 1)) for c, word in enumerate(line)]
                for line in answer
            ]
            if job in silent_jobs:
                status_words, words = [int(silent)] * config.lanes, [[]] * config.lanes
            for word in status_words:
                bits |= _command_bits(word)
            self.words["answers"].append(
                {"job": len(self.words["job"]), "a": len(self.words["a"]),
                 "x": len(self.words["x"]), "y": words, "status": status_words}
            )  # fmt: skip
            if job not in silent_jobs and not void:
                self._write_rows(o, token, group, y, out_rows)
        self.words["supplied"].append((len(self.words["answers"]), int(error)))
        if void:
            self._end(status)
            return status
        if silent or error:
            for token in range(tokens):
                for row in range(out_rows):
                    self._write(o["dst"] + token * o["stride"] + row, NAN_ROW)
        if silent:
            bits &= ~(CommandStatus.OVERFLOW | CommandStatus.SCALE_NONFINITE)
        status = CommandStatus.BUS_ERROR if error else bits
        self._end(status)
        return status

    def _offer_job(self, o, token, direct, integer, rows, beats, void):
        lane, length = self.lane, o["length"]
        if void:
            value, mask = np.zeros(rows * 16, dtype=np.int64), np.zeros(length, dtype=bool)
            x, scale = [], 0x3C00
        elif direct:
            base = o["src"] + token * o["src_stride"]
            self._read(range(base, base + rows))
            x = np.concatenate([row_words(self.vector[base + r]) for r in range(rows)])[:length]
            value, mask = np.zeros(rows * 16, dtype=np.int64), np.ones(length, dtype=bool)
            scale = 0x3C00
        else:
            number = o["slot"] + token
            value, mask, x, scale, _ = self.held[number]
            self.words["slot_slot"].append(number)
            self.words["slot_entry_request"] += [join((number, 8), (r, 10)) for r in range(rows)]
            self.words["slot_outlier_request"] += [
                join((number, 8), (n, 14)) for n in range(len(x))
            ]
        self.words["job"].append(
            layout_word(
                lane.job_layout, length=length, outliers=len(x), s_a=scale,
                last_column=lane.columns - 1, integer=integer,
            )
        )  # fmt: skip
        marks = np.zeros(beats * lane.elements, dtype=np.int64)
        marks[:length] = mask
        for beat in range(beats):
            here = slice(beat * lane.elements, (beat + 1) * lane.elements)
            self.words["a"].append(
                layout_word(
                    lane.a_layout, value=value[here], outlier=marks[here], last=beat == beats - 1
                )
            )
        self.words["x"] += [int(word) for word in x]

    def _write_rows(self, o, token, group, y, out_rows):
        """Rows of one job, lane by lane, then the lanes' next rows."""
        config, per_lane = self.config, self.lane.columns // 16
        shown = y[token].copy()
        shown[o["outputs"] :] = 0
        for part in range(per_lane):
            for n in range(config.lanes):
                row = group * config.group_rows + n * per_lane + part
                if row < out_rows:
                    place = o["dst"] + token * o["stride"] + row
                    self._write(place, row_of(shown[16 * row : 16 * row + 16]))

    def _write(self, row, word):
        self.words["write"].append(join((row, 16), (word, 256)))
        self.vector[row] = word

    def program(self):
        return {**self.words, **self.tables, "vector": self.first, "after": self.vector}


def _command_bits(word: int) -> CommandStatus:
    """The bits of the command's status for a lane's status."""
    named = {
        Status.NONFINITE: CommandStatus.NONFINITE,
        Status.CODEBOOK_MISSING: CommandStatus.CODEBOOK_MISSING,
        Status.OVERFLOW: CommandStatus.OVERFLOW,
        Status.SCALE_NONFINITE: CommandStatus.SCALE_NONFINITE,
    }
    bits = CommandStatus(0)
    for status in Status:
        if word & status:
            bits |= named.get(status, CommandStatus.LANE_FAULT)
    return bits


def begin(config, rng):
    author = Author(config, rng)
    for row in range(40, 48):  # tokens of DIRECT: any finite word, signs too
        author.poke(row, rng.integers(0, 0x7C00, 16) | rng.integers(0, 2, 16) << 15)
    return author


def span(author, tokens, outputs, gap):
    """dst, stride and outputs of a destination at a random place."""
    rows = -(-outputs // 16)
    stride = rows + gap
    room = author.config.vectors.rows - SOURCES_END - stride * (tokens - 1) - rows
    dst = SOURCES_END + int(author.rng.integers(0, room + 1))
    return {"dst": dst, "stride": stride, "outputs": outputs, "tokens": tokens}


def mixed(config, rng, kind, count=6, plain=False):
    """A codebook, then ``count`` matmuls on slots of one length; faults among them."""
    author = begin(config, rng)
    lane, width = author.lane, config.lanes * author.lane.columns
    integer = kind == Codebook.INTEGER
    assert author.codebook(int(rng.integers(0, 4)), kind) == 0
    if config.based:  # that of the program before stays
        author.weight_base(int(rng.integers(40, 100)))
    replayed = min(config.slot.elements, config.replay_beats * lane.elements)
    length = int(rng.choice([1, replayed, config.slot.elements, rng.integers(1, replayed + 1)]))
    for number in range(config.slot.slots):
        author.slot(number, length, integer, outliers=0 if number == 1 else None)
    for n in range(count):
        mode = MatmulMode.INTEGER if integer else MatmulMode.KMEANS
        if n % 3 == 1 and not integer:
            mode = MatmulMode.DIRECT
        o = {"mode": mode, "weights": rng.integers(0, 1 << 32)}
        if mode == MatmulMode.DIRECT:
            here = int(rng.integers(1, min(config.slot.elements, lane.outliers_max) + 1))
            o |= {"length": here, "src": 40 + n % 3, "src_stride": n % 2}
        else:
            here = length
            o |= {"length": here, "fold_norm": rng.integers(0, 2)}
        if config.based:
            o["based"] = rng.integers(0, 2)
            if rng.random() < 0.5:  # of a row that the command before it may have written
                author.weight_base(int(rng.integers(40, 100)), aborted=rng.random() < 0.2)
        most = min(3, config.slot.slots) if here <= replayed else 1
        tokens = int(rng.integers(1, most + 1))
        if mode != MatmulMode.DIRECT:
            o["slot"] = rng.integers(0, config.slot.slots - tokens + 1)
        outputs = int(rng.choice([1, width, width + 1, 2 * width, rng.integers(1, 2 * width)]))
        o |= span(author, tokens, outputs, int(rng.integers(0, 3)))
        if rng.random() < 0.2 and not plain:
            # An abort before it may run; slots of another length.
            silent = rng.choice([0, Status.NONFINITE])
            author.matmul(aborted=True, silent=silent, **o)
            if mode != MatmulMode.DIRECT:
                other = {"length": length - 1 if length > 1 else 2}
                status = author.matmul(error=rng.random() < 0.5, silent=silent, **o | other)
                assert status == CommandStatus.SLOT_MISMATCH
        silent, error = 0, rng.random() < 0.15 and not plain
        if rng.random() < 0.2 and not plain:
            silent = rng.choice([Status.NONFINITE, Status.LAST_MISPLACED, Status.CODEBOOK_MISSING])
        author.matmul(silent=silent, error=error, **o)
        if n % 3 == 2 and not integer:
            # Reads what was just written.
            author.matmul(
                mode=MatmulMode.DIRECT, src=o["dst"], length=min(16, lane.outliers_max), outputs=3
            )
    if rng.random() < 0.5:
        author.codebook(int(rng.integers(0, 4)), kind)
    return author.program()


def refused(config, rng):
    """Each cause alone, one step from what is allowed; commands that run among them."""
    author = begin(config, rng)
    lane, R = author.lane, CommandStatus.RANGE
    rows, slots = config.vectors.rows, config.slot.slots
    longest, direct = config.slot.elements, MatmulMode.DIRECT
    few = min(longest, config.replay_beats * lane.elements, 20)
    beyond = config.replay_beats * lane.elements + 1
    author.slot(0, few)
    author.slot(1, few)
    author.slot(2, few, valid=False)
    author.slot(3, few + 1)
    author.slot(4, longest)
    author.poke(60, np.full(16, 0x3C01))
    fits = {"length": few}
    assert author.matmul(**fits) == CommandStatus.CODEBOOK_MISSING
    assert author.matmul(mode=direct, length=1) == CommandStatus.CODEBOOK_MISSING
    assert author.codebook(rows - 1, Codebook.KMEANS) == R or lane.codebook_words <= 16
    assert author.matmul(**fits) == CommandStatus.CODEBOOK_MISSING
    packet_rows = -(-lane.codebook_words // 16)
    assert author.codebook(rows - packet_rows + 1, Codebook.KMEANS) == R
    assert author.codebook(0, Codebook.KMEANS) == 0
    assert author.codebook(rows - packet_rows + 1, Codebook.KMEANS) == R  # the old one stays
    runs = [
        {},
        {"dst": rows - 1},
        {"dst": rows - 1 - 5, "stride": 5, "tokens": 2},
        {"slot": 4, "length": longest},
        {"mode": direct, "length": min(longest, lane.outliers_max)},
        {"mode": direct, "length": 1, "src": rows - 1},
        {"mode": direct, "length": 1, "src": 1, "src_stride": 3, "tokens": 2, "stride": 1},
        {"mode": direct, "length": 1, "slot": 255},
    ]
    ranges = [
        {"mode": 3}, {"tokens": 0}, {"length": 0}, {"length": longest + 1}, {"outputs": 0},
        {"dst": rows - 1, "outputs": 17}, {"dst": rows}, {"dst": 65535},
        {"dst": rows - 2 * 5, "stride": 5, "tokens": 3},
        {"dst": 0, "stride": 65535, "tokens": 2}, {"dst": 0, "outputs": 65535},
        {"slot": slots}, {"slot": slots - 1, "tokens": 2}, {"slot": 255}, {"tokens": 255},
        {"mode": direct, "length": min(longest, lane.outliers_max) + 1},
        {"mode": direct, "length": 17, "src": rows - 1},
        {"mode": direct, "length": 1, "src": rows},
        {"mode": direct, "length": 1, "src": rows - 5, "src_stride": 5, "tokens": 2},
        {"mode": direct, "length": 1, "fold_norm": 1},
    ]  # fmt: skip
    assert beyond <= longest
    ranges.append({"length": beyond, "tokens": 2})
    for n in range(max(len(runs), len(ranges))):
        assert author.matmul(**fits | {"slot": 0, "length": 0}) == R
        if n < len(ranges):
            assert author.matmul(**fits | ranges[n]) == R, ranges[n]
        if n < len(runs):
            status = author.matmul(**fits | runs[n])
            assert not status & ~(CommandStatus.OVERFLOW | CommandStatus.SCALE_NONFINITE), runs[n]
    mismatch = CommandStatus.SLOT_MISMATCH
    assert author.matmul(slot=2, length=few) == mismatch  # empty
    assert author.matmul(slot=3, length=few) == mismatch  # another length
    assert author.matmul(slot=1, tokens=2, length=few) == mismatch  # the second is empty
    assert author.matmul(slot=2, tokens=2, length=few + 1) == mismatch  # the first is
    assert author.codebook(60, Codebook.KMEANS, aborted=True)  # the old one stays
    for tokens in (1, 2):
        assert author.matmul(aborted=True, tokens=tokens, length=few, fold_norm=1, outputs=40)
        assert author.matmul(slot=1, tokens=2, length=few, fold_norm=1, outputs=40) == mismatch
        assert not author.matmul(odd=0, **fits)
    assert author.matmul(aborted=True, mode=direct, length=1)
    assert author.matmul(aborted=True, mode=direct, length=0)
    assert author.unknown(Opcode.BINARY)
    if config.based:
        assert author.weight_base(rows) == R
        assert not author.weight_base(rows - 1)
        assert not author.matmul(odd=0, based=1, **fits)
    else:
        assert author.weight_base(0) == R
        assert author.matmul(based=1, **fits) == R
    if lane.integer_bits:
        integer = MatmulMode.INTEGER
        assert author.matmul(mode=integer, **fits) == CommandStatus.CODEBOOK_MISSING
        assert author.codebook(1, Codebook.INTEGER) == 0
        assert author.matmul(**fits) == CommandStatus.CODEBOOK_MISSING
        assert author.matmul(mode=integer, length=longest, slot=4) == mismatch  # no integers
    else:
        assert author.matmul(mode=MatmulMode.INTEGER, **fits) == R
        assert author.codebook(1, Codebook.INTEGER) == R
    assert author.codebook(60, Codebook.KMEANS) == R  # a word beyond 1
    assert author.matmul(**fits) == CommandStatus.CODEBOOK_MISSING
    return author.program()


def steady(config, rng, commands, tokens, groups, fold=0):
    """Matmuls that run, one like the other."""
    author = begin(config, rng)
    assert author.codebook(0, Codebook.KMEANS) == 0
    length = min(config.slot.elements, config.replay_beats * author.lane.elements)
    for number in range(config.slot.slots):
        author.slot(number, length, outliers=min(2, length))
    outputs = groups * config.lanes * author.lane.columns
    for n in range(commands):
        author.matmul(
            slot=n % 2, tokens=tokens, length=length, odd=0, fold_norm=fold,
            **{k: v for k, v in span(author, tokens, outputs, 0).items() if k != "tokens"},
        )  # fmt: skip
    return author.program()


def silent_first(config, rng):
    """Commands of two jobs; of every second command the first job answers with a status only."""
    author = begin(config, rng)
    assert author.codebook(0, Codebook.KMEANS) == 0
    author.slot(0, 1, outliers=0)
    author.slot(1, 1, outliers=0)
    outputs = config.lanes * author.lane.columns
    for n in range(8):
        where = span(author, 2, outputs, 0)
        author.matmul(length=1, silent=Status.NONFINITE * (n % 2), first=True, odd=0, **where)
    return author.program()


def direct_alone(config, rng):
    """A codebook, then a DIRECT of one group."""
    author = begin(config, rng)
    assert author.codebook(0, Codebook.KMEANS) == 0
    author.matmul(mode=MatmulMode.DIRECT, odd=0)
    return author.program()


def programs(config, seed):
    kinds = [Codebook.KMEANS, Codebook.INTEGER] if config.lane.integer_bits else [Codebook.KMEANS]
    rng = np.random.default_rng([seed, 61])
    return {
        "mixed": [mixed(config, rng, kinds[n % len(kinds)]) for n in range(8)],
        "short": [mixed(config, rng, Codebook.KMEANS, 4)],
        "refused": [refused(config, rng)],
        "silent": [silent_first(config, rng)],
        "overlap": [steady(config, rng, 4, 1, 1)],
        "folded": [steady(config, rng, 2, min(4, config.slot.slots - 1), 2, fold=1)],
        "rate": [steady(config, rng, 1, 2, 2)],
        "direct": [direct_alone(config, rng)],
    }


@pytest.mark.telling("two_rows", "three_rows", "rows", "based")
@pytest.mark.parametrize("name", CONFIGS)
def test_matmul(name, seed):
    config = CONFIGS[name]
    params = {"programs": programs(config, seed)}
    simulate(KllmMatmul(config), "tb.kllm.tb_matmul", params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"lane": KllmPeLaneConfig(columns=8)},
            "lane.columns must be a multiple of 16, not 8",
        ),
        ({"lane": KllmPeLaneConfig(elements=3)}, "lane.elements must be a divisor of 16, not 3"),
        (
            {"slot": SlotShape(elements=11009)},
            "lane.k_max must be at least 11009, slot.elements, not 11008",
        ),
        ({"slot": SlotShape(bits_a=3)}, "lane.bits_a must be 3 as in slot.bits_a, not 4"),
        (
            {"slot": SlotShape(integer_bits=0)},
            "lane.integer_bits must be 0 as in slot.integer_bits, not 8",
        ),
        (
            {"slot": SlotShape(outliers_max=9)},
            "lane.outliers_max must be 9 as in slot.outliers_max, not ",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match="must be") as error:
        KllmMatmulConfig(**wrong)
    assert message in str(error.value)
