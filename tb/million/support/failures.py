"""Scripts for million_attention: tokens fail in mid-encoding, and requests follow at once."""

from golden.million.format import Op, Status
from golden.million.vectors.script import Script
from golden.million.vectors.words import MOST
from hdl.million.attention import MillionAttentionConfig


class _Failures:
    """Sequence ``mine`` fails; ``kept`` holds codes that no failure may touch."""

    def __init__(self, config: MillionAttentionConfig, seed: int):
        self.script = Script(config, seed)
        self.cache = config.cache
        self.books = self.script.books(self.cache.pq.entries)
        self.mine, self.kept = 0, self.cache.sequences - 1

    def start(self) -> None:
        script = self.script
        for _ in range(self.cache.sequences):
            script.open()
        assert script.load(0, self.books) == Status.OK
        for sequence in (self.mine, self.kept):
            for _ in range(self.cache.window.sinks):
                assert script.prefill(sequence, 0) == Status.OK
            for _ in range(2):
                assert script.restore(sequence, 0) == Status.OK
        script.wait()

    def memory(self) -> None:
        """SLVERR and DECERR: of the writes of K or V of each head, and of reads during one."""
        script, mine, kept = self.script, self.mine, self.kept
        for resp, status in ((2, Status.SLAVE_ERROR), (3, Status.DECODE_ERROR)):
            for kv in range(2):
                for head in range(self.cache.head.heads):
                    token = script.vectors()
                    self.fault(resp, mine, kv, head)
                    assert script.attend(kept, 0) == Status.OK
                    assert script.prefill(mine, 0, token) == status
                    assert script.attend(kept, 0) == Status.OK
                    assert script.prefill(kept, 0) == Status.OK
                    assert script.prefill(mine, 0, token) == status
                    assert script.attend(mine, 0) == status
                    assert script.attend(kept, 0) == Status.OK
                    script.wait()
                    assert script.prefill(mine, 0, token) == Status.OK
                    assert script.attend(mine, 0) == Status.OK
                    script.wait()
                if resp == 2 + kv:  # max_tokens leaves no room for more
                    self.restores(resp, status, kv)
            self.fault(resp, kept, 0, 0)
            for _ in range(2):
                assert script.attend(kept, 0) == status
                assert script.prefill(mine, 0) == Status.OK
                assert script.attend(mine, 0) == Status.OK
            script.wait()
            # Another token than the one that failed: K of that one, V of this one.
            self.fault(resp, mine, 1, 0)
            assert script.prefill(mine, 0) == status
            script.wait()
            assert script.prefill(mine, 0) == Status.OK
            assert script.attend(mine, 0) == Status.OK
            script.wait()

    def restores(self, resp: int, status: Status, kv: int) -> None:
        """A restored token fails, then a prefilled one; the codes of another take its place."""
        script, mine, kept = self.script, self.mine, self.kept
        head = self.cache.head.heads - 1
        for add in (script.restore, script.prefill):
            self.fault(resp, mine, kv, head)
            assert add(mine, 0) == status
            assert script.restore(kept, 0) == Status.OK
            assert script.restore(mine, 0) == status
            script.wait()
            assert script.restore(mine, 0) == Status.OK
            assert script.attend(mine, 0) == Status.OK
            assert script.attend(kept, 0) == Status.OK
            script.wait()

    def fault(self, resp: int, sequence: int, kv: int, head: int) -> None:
        page = self.script.place(sequence, 0, kv, head)
        self.script.fault(resp, page, page + self.cache.page_bytes)

    def pages(self) -> None:
        """The last pages go to the K of a token, and its V finds none."""
        script = self.script
        sequence, layer, token = self.last_page()
        assert script.golden.layers[sequence, layer].has_k
        others = [n for n in range(self.cache.sequences) if n != sequence]
        for other in others:
            script.attend(other, layer)
        assert script.prefill(sequence, layer, token) == Status.OUT_OF_PAGES
        assert script.restore(sequence, layer) == Status.OUT_OF_PAGES
        script.attend(sequence, layer)
        assert script.free(others[0]) == Status.OK
        assert script.prefill(sequence, layer, token) == Status.OK
        assert script.attend(sequence, layer) == Status.OK
        assert script.open() == others[0]
        script.prefill(others[0], layer)  # its K may take the last pages again
        script.attend(others[0], layer)
        script.wait()
        self.no_codes(others[0], layer)

    def last_page(self) -> tuple:
        """Tokens of all (sequence, layer) until one finds no page; that one, and the token."""
        script = self.script
        for layer in range(self.cache.layers):
            assert script.load(layer, self.books) == Status.OK
            for sequence in range(self.cache.sequences):
                status = Status.OK
                while status == Status.OK:
                    token = script.vectors()
                    status = script.prefill(sequence, layer, token)
                if status == Status.OUT_OF_PAGES:
                    return sequence, layer, token
                assert status == Status.LENGTH_LIMIT
                script.wait()
        raise AssertionError("pages are left")

    def no_codes(self, sequence: int, layer: int) -> None:
        """Infinite entries of a table that no code reads."""
        script, window = self.script, self.cache.window
        if not window.rows:
            return
        assert script.free(sequence) == Status.OK
        assert script.open() == sequence
        assert script.append(sequence, layer) == Status.OK
        assert not script.golden.layers[sequence, layer].past
        assert script.load(layer, script.books(self.cache.pq.entries, 3, 3)) == Status.OK
        big = script.queries()
        big.view(-1, self.cache.pq.head_dim)[0] = MOST
        assert script.attend(sequence, layer, big) == Status.OVERFLOW
        assert script.load(layer, self.books) == Status.OK
        assert script.attend(sequence, layer) == Status.OK
        script.wait()


def failures_script(config: MillionAttentionConfig, seed: int) -> list[dict]:
    """SLVERR, DECERR and OUT_OF_PAGES in mid-PREFILL; right afterwards, requests that are right."""
    found = _Failures(config, seed)
    found.start()
    found.memory()
    found.pages()
    assert {(Op.PREFILL, status) for status in (
        Status.OUT_OF_PAGES, Status.SLAVE_ERROR, Status.DECODE_ERROR
    )} <= found.script.statuses  # fmt: skip
    return found.script.done()


def wide_script(config: MillionAttentionConfig, seed: int) -> list[dict]:
    """Every way to add a token, then ATTENDs, with whole codebooks."""
    script = Script(config, seed)
    window = config.cache.window
    sequence = script.open()
    assert script.load(0, script.books(config.cache.pq.entries)) == Status.OK
    for _ in range(window.sinks + 1):
        assert script.prefill(sequence, 0) == Status.OK
    for _ in range(2):
        assert script.restore(sequence, 0) == Status.OK
    for _ in range(window.recent + 1):
        assert script.append(sequence, 0) == Status.OK
    for _ in range(2):
        assert script.attend(sequence, 0) == Status.OK
    return script.done()
