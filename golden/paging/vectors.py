"""Random commands for the page table, with golden's answers: what an MMU asks, and misuse."""

import random
from collections.abc import Iterator

from golden.paging.config import CacheConfig
from golden.paging.format import PageOp, Status
from golden.paging.pages import PageCommand, PageResponse, PageTable

# Bits of the fields that misuse draws from.
WIDTHS = {"sequence": 8, "layer": 8, "kv": 1, "slot": 9, "token": 21, "bytes": 12, "page": 20}


class Traffic:
    """Drives a golden table; ``pairs`` gives (command, answer).

    misuse: chance per command of one that no MMU would give. vectors: how many (layer, K or V) of
    each sequence are used, so that large configurations fill some pages too.
    """

    def __init__(self, config: CacheConfig, rng: random.Random, *, misuse=0.1, vectors=4):
        self.config, self.rng, self.misuse = config, rng, misuse
        self.table = PageTable(config)
        every = [(layer, kv) for layer in range(config.layers) for kv in (0, 1)]
        # The last, the first and some between.
        between = rng.sample(every[1:-1], max(0, min(vectors, len(every)) - 2))
        self.used = [every[-1], every[0], *between][:vectors]
        self.tokens: dict[tuple[int, int, int], int] = {}
        self.start: dict[int, int] = {}
        self.closing: set[int] = set()  # and the child of a fork under way
        self.is_full = False  # the last append was refused
        self.is_appending = False
        self.parent: int | None = None  # of a fork under way

    def pairs(self, count: int) -> list[tuple[PageCommand, PageResponse]]:
        """Makes at least ``count`` pairs; they end between two operations."""
        pairs: list[tuple[PageCommand, PageResponse]] = []
        while len(pairs) < count:
            pairs += self._operation()
        return pairs

    def _ask(self, op, **fields) -> Iterator[tuple[PageCommand, PageResponse]]:
        """One command, its unused fields junk, perhaps with misuse before it."""
        if self.rng.random() < self.misuse:
            yield from self._misuse()
        junk = {name: self.rng.getrandbits(width) for name, width in WIDTHS.items()}
        command = PageCommand(op, **{**junk, **fields})
        answer = self.table.command(command)
        self.answer = answer
        yield command, answer

    def _misuse(self):
        """Refused commands: golden says that nothing changes, so the operations go on."""
        rng, config = self.rng, self.config
        for _ in range(rng.randrange(1, 4)):
            fields = {
                "sequence": rng.randrange(config.sequences + 2) % 256,
                "layer": rng.randrange(config.layers + 1) % 256,
                "kv": rng.getrandbits(1),
                "slot": rng.randrange(config.kv.slots + 1),
                "token": rng.choice([0, rng.randrange(config.max_tokens + 2), (1 << 21) - 1]),
                "bytes": rng.choice([0, 1, config.kv.kinds[-1].most, rng.getrandbits(12)]),
                "page": rng.choice([rng.getrandbits(20), config.pages % (1 << 20)]),
            }
            command = PageCommand(rng.choice([*PageOp, PageOp.FORK, PageOp.FORK_END]), **fields)
            if self._is_harmless(command):
                yield command, self.table.command(command)

    def _is_harmless(self, command) -> bool:
        """Whether the command disturbs no operation in flight, should golden not refuse it."""
        is_known = command.sequence in self.start
        if command.op in (PageOp.FORK, PageOp.FORK_STREAM, PageOp.FORK_END):
            is_safe = not is_known if command.op == PageOp.FORK else self.parent is None
            return is_safe or not self.config.forks
        return command.op in (PageOp.READ, PageOp.NEXT, PageOp.TRIM_CHECK) or (
            command.op in (PageOp.CLOSE, PageOp.SET_START, PageOp.FREE_STREAM, PageOp.VACATE)
            and not is_known
            and command.sequence not in self.closing
        )

    def _operation(self):
        rng, config = self.rng, self.config
        if rng.random() < self.misuse:
            yield from self._wrong_order()
        if not self.start or rng.random() < 0.02:
            yield from self._open()
            return
        sequence = rng.choice(sorted(self.start))
        if config.forks and rng.random() < 0.3:
            yield from self._fork(sequence)
            return
        kind = rng.random()
        if self.is_full:
            kind = 0.6 + 0.4 * kind  # no append
            self.is_full = False
        if kind < 0.6:
            for _ in range(rng.choice([1, 3, 20])):
                yield from self._append(sequence)
                if self.is_full:
                    break
        elif kind < 0.8:
            yield from self._read(sequence)
        elif kind < 0.92:
            yield from self._trim(sequence)
        elif kind < 0.95:
            yield from self._fill_pages(sequence)
        elif self.table.free_pages < config.pages // 4 or rng.random() < 0.1:
            yield from self._free(sequence)

    def _open(self):
        yield from self._ask(PageOp.OPEN)
        if self.answer.status == Status.OK:
            sequence = self.answer.sequence
            self.start[sequence] = 0
            for layer, kv in self.used:
                self.tokens[sequence, layer, kv] = 0

    def _size(self, slot: int) -> int:
        kind = self.config.kv.kind(slot)
        if kind.is_fixed:
            return kind.most
        low, high = kind.least, kind.most
        return self.rng.choice([low, high, self.rng.randint(low, high)])

    def _append(self, sequence, vector=None):
        rng, config = self.rng, self.config
        layer, kv = vector or rng.choice(self.used)
        token = self.tokens[sequence, layer, kv]
        where = {"sequence": sequence, "layer": layer, "kv": kv}
        yield from self._ask(PageOp.BEGIN, **where, token=token)
        if self.answer.status != Status.OK:
            assert self.answer.status == Status.LENGTH_LIMIT
            self.is_full = True
            return
        give_up = rng.randrange(config.kv.slots) if rng.random() < 0.1 else None
        self.is_appending = True
        yield from self._records(sequence, where, token, give_up)
        self.is_appending = False

    def _records(self, sequence, where, token, give_up):
        """The records of a transaction, and its end."""
        rng, config = self.rng, self.config
        for slot in range(config.kv.slots):
            if rng.random() < 0.02:
                yield from self._in_between(sequence)
            if slot == give_up:
                yield from self._ask(PageOp.ABORT)
                return
            size = self._size(slot)
            if rng.random() < self.misuse / 4:
                yield from self._ask(PageOp.EXTEND, slot=slot ^ 1, bytes=size)
                yield from self._ask(PageOp.EXTEND, slot=slot, bytes=rng.choice([0, 4095]))
                yield from self._ask(PageOp.COMMIT)
                yield from self._ask(PageOp.CLOSE, sequence=sequence)
                yield from self._ask(PageOp.TRIM_STREAM, **where, slot=slot, token=0)
                yield from self._ask(PageOp.BEGIN, **where, token=token)
            yield from self._ask(PageOp.EXTEND, slot=slot, bytes=size)
            if self.answer.status == Status.OUT_OF_PAGES:
                if rng.random() < 0.5:
                    yield from self._ask(PageOp.EXTEND, slot=slot, bytes=size)
                if self.answer.status == Status.OUT_OF_PAGES:
                    self.is_full = True
                    yield from self._ask(PageOp.ABORT)
                    return
            assert self.answer.status == Status.OK, self.answer
        if rng.random() < 0.05:
            yield from self._ask(PageOp.ABORT)
            return
        yield from self._ask(PageOp.COMMIT)
        assert self.answer.status == Status.OK
        self.tokens[sequence, where["layer"], where["kv"]] += 1

    def _in_between(self, sequence):
        """Yields operations that may happen during a transaction."""
        yield from self._read(self.rng.choice(sorted(self.start)))
        other = self.rng.choice(sorted(self.start))
        if other not in (sequence, self.parent):
            if self.rng.random() < 0.3:
                yield from self._free(other)
            else:
                yield from self._trim(other)
        if self.config.forks and self.parent is None and self.rng.random() < 0.2:
            yield from self._fork(self.rng.choice(sorted(self.start)))

    def _fork(self, parent):
        """A child of ``parent``; of a few the fork is given up, or refused in the middle."""
        rng, config = self.rng, self.config
        if not self.is_appending and rng.random() < 0.9:
            yield from self._level(parent)
        token = self.tokens[parent, *rng.choice(self.used)]
        if rng.random() < 0.1:
            token = rng.choice([token + 1, max(token - 1, 0), rng.getrandbits(21)])
        yield from self._ask(PageOp.FORK, sequence=parent, token=token)
        if self.answer.status != Status.OK:
            return
        child, streams = self.answer.sequence, config.streams // config.sequences
        self.closing.add(child)
        self.parent = parent
        give_up = rng.randrange(2 * streams) if rng.random() < 0.3 else streams
        for n in range(streams):
            if rng.random() < 0.05:
                yield from self._during_fork(parent)
            if n == give_up:
                break
            yield from self._ask(PageOp.FORK_STREAM)
            if self.answer.status != Status.OK:
                break
        else:
            yield from self._ask(PageOp.FORK_END)
            assert self.answer.status == Status.OK
            self.closing.remove(child)
            self.start[child] = self.start[parent]
            for each in self.used:
                self.tokens[child, *each] = token
            self.parent = None
            return
        yield from self._ask(PageOp.CLOSE, sequence=child)
        self.parent = None
        yield from self._vacate(child)

    def _level(self, sequence):
        """Appends until all vectors have equally many tokens, if that takes few.

        Sometimes pages of the first slot are full then.
        """
        config = self.config
        target = max(self.tokens[sequence, *each] for each in self.used)
        full, rest = divmod(config.page_bytes, config.kv.kind(0).most)
        if not rest and self.rng.random() < 0.5:
            target = min(-(-max(target, 1) // full) * full, config.max_tokens)
        if sum(target - self.tokens[sequence, *each] for each in self.used) > 60:
            return
        for vector in self.used:
            while self.tokens[sequence, *vector] < target and not self.is_full:
                yield from self._append(sequence, vector)

    def _during_fork(self, parent):
        """Yields operations that may happen while a fork is under way, and some that may not."""
        rng = self.rng
        yield from self._read(rng.choice(sorted(self.start)))
        layer, kv = rng.choice(self.used)
        yield from self._ask(PageOp.FORK_END)
        yield from self._ask(PageOp.CLOSE, sequence=parent)
        where = {"sequence": parent, "layer": layer, "kv": kv, "slot": 0}
        yield from self._ask(PageOp.TRIM_STREAM, **where, token=0)
        yield from self._ask(PageOp.FORK, sequence=rng.choice(sorted(self.start)), token=0)
        other = rng.choice(sorted(self.start))
        if not self.is_appending and (other != parent or rng.random() < 0.2):
            yield from self._append(other)
        elif not self.is_appending and rng.random() < 0.3:
            yield from self._open()

    def _read(self, sequence):
        rng, config = self.rng, self.config
        layer, kv = rng.choice(self.used)
        tokens, start = self.tokens[sequence, layer, kv], self.start[sequence]
        for slot in rng.sample(range(config.kv.slots), min(3, config.kv.slots)):
            token = rng.choice([tokens, tokens, start, start + 1, tokens + 1, rng.getrandbits(21)])
            token %= 1 << 21
            yield from self._ask(
                PageOp.READ, sequence=sequence, layer=layer, kv=kv, slot=slot, token=token
            )
            answer = self.answer
            for _ in range((answer.offset + answer.bytes - 1) // config.page_bytes):
                yield from self._ask(
                    PageOp.NEXT, sequence=sequence, layer=layer, kv=kv, slot=slot,
                    page=self.answer.page,
                )  # fmt: skip

    def _fill_pages(self, sequence):
        """The last dense pages are full, all their tokens trimmed, then further tokens come."""
        config, counts = self.config, [self.tokens[sequence, *each] for each in self.used]
        full, rest = divmod(config.page_bytes, config.kv.kind(0).most)
        target = (max(counts) // full + 1) * full
        missing = sum(target - count for count in counts)
        if rest or target >= config.max_tokens or missing * config.kv.slots > 1000:
            return
        for vector in self.used:
            for _ in range(2 * full):
                if self.tokens[sequence, *vector] < target and not self.is_full:
                    yield from self._append(sequence, vector)
        yield from self._trim(sequence, target)
        for vector in self.used:
            yield from self._append(sequence, vector)
        yield from self._read(sequence)

    def _trim(self, sequence, token=None):
        rng, config = self.rng, self.config
        counts = [self.tokens[sequence, *each] for each in self.used]
        limit = min(counts)
        if token is None or token > limit:
            token = rng.choice([0, limit, rng.randint(0, limit), max(0, limit - rng.randrange(9))])
        for layer, kv in self.used:
            yield from self._ask(
                PageOp.TRIM_CHECK, sequence=sequence, layer=layer, kv=kv,
                token=token + rng.choice([0, 0, 0, 1]),
            )  # fmt: skip
        yield from self._ask(PageOp.SET_START, sequence=sequence, token=token)
        start = self.start[sequence] = max(token, self.start[sequence])
        for layer, kv in self.used:
            for slot in range(config.kv.slots):
                fields = {"sequence": sequence, "layer": layer, "kv": kv, "slot": slot}
                if rng.random() < 0.1:
                    yield from self._ask(PageOp.TRIM_STREAM, **fields, token=start + 1)
                    yield from self._ask(PageOp.READ, **fields, token=max(counts))
                yield from self._ask(PageOp.TRIM_STREAM, **fields, token=start)
        assert self.answer.status == Status.OK

    def _free(self, sequence):
        yield from self._ask(PageOp.CLOSE, sequence=sequence)
        assert self.answer.status == Status.OK
        del self.start[sequence]
        self.closing.add(sequence)
        yield from self._ask(PageOp.VACATE, sequence=sequence)
        if self.answer.status == Status.OK:
            self.closing.remove(sequence)
            return
        yield from self._ask(PageOp.CLOSE, sequence=sequence)
        yield from self._vacate(sequence)

    def _vacate(self, sequence):
        """The streams of a closing sequence, and its end."""
        rng, config = self.rng, self.config
        for layer, kv in self.used:
            for slot in range(config.kv.slots):
                yield from self._ask(
                    PageOp.FREE_STREAM, sequence=sequence, layer=layer, kv=kv, slot=slot
                )
                if rng.random() < 0.02 and self.start:
                    yield from self._read(rng.choice(sorted(self.start)))
        yield from self._ask(PageOp.VACATE, sequence=sequence)
        assert self.answer.status == Status.OK
        self.closing.remove(sequence)

    def _wrong_order(self):
        """Commands out of any transaction."""
        rng, config = self.rng, self.config
        for op in rng.sample([PageOp.EXTEND, PageOp.COMMIT, PageOp.ABORT], 2):
            yield from self._ask(op, slot=0, bytes=config.kv.kind(0).most)
        sequence = rng.randrange(config.sequences)
        layer, kv = rng.choice(self.used)
        token = self.tokens.get((sequence, layer, kv), 0) + rng.choice([-1, 1, 2, 1 << 20])
        yield from self._ask(
            PageOp.BEGIN, sequence=sequence, layer=layer, kv=kv, token=token % (1 << 21)
        )
        assert self.answer.status != Status.OK
