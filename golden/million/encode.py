"""The order in which vectors become codes: APPENDs of the paged memory. Pure Python."""

import dataclasses
from collections.abc import Iterable, Iterator

from golden.million.format import Status, paged


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The encoding that a (sequence, layer) wants."""

    vector: int  # (sequence, layer)
    until: int = 0  # tokens that have codes afterwards
    clear: bool = False  # a new sequence: nothing is encoded
    restored: bool = False  # the codes come from the host, those of one token's K and V
    discard: bool = False  # with restored: they are taken and nothing is done


@dataclasses.dataclass
class Done:
    """The outcome of a job."""

    status: Status = Status.OK
    appends: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # (kv, token)
    takes: list[bool] = dataclasses.field(default_factory=list)  # a side's codes are discarded


@dataclasses.dataclass
class _Progress:
    coded: int = 0  # tokens whose K and V have codes
    has_k: bool = False  # the K of the next token has codes, too


class Encoding:
    """The progress of each (sequence, layer); a vector that has codes is not encoded again."""

    def __init__(self) -> None:
        self.progress: dict[int, _Progress] = {}

    def run(self, job: Job, answers: Iterable[int]) -> Done:
        """``answers`` are the statuses of the paged memory; a job takes as many as it has APPENDs.

        A job ends at the first status that is not OK. ``restored`` takes the host's codes of K and
        of V once each. It discards those of a side that has codes, or that follows a failure.
        """
        found, ends = Done(), iter(answers)
        if job.discard:
            found.takes = [True, True]
        elif job.clear:
            self.progress[job.vector] = _Progress()
        elif job.restored:
            for kv in range(2):
                now = self.progress[job.vector]
                is_next = now.has_k == bool(kv) and not found.status
                found.takes.append(not is_next)
                if is_next:
                    self._append(now, found, ends)
        else:
            now = self.progress[job.vector]
            while now.coded < job.until and not found.status:
                self._append(now, found, ends)
        return found

    @staticmethod
    def _append(now: _Progress, found: Done, ends: Iterator[int]) -> None:
        found.appends.append((int(now.has_k), now.coded))
        found.status = paged(next(ends))
        if not found.status:
            now.coded += now.has_k
            now.has_k = not now.has_k
