"""Phase two of the branches that a pass ends: each is started, and its answer awaited later.

So the databases work at the same time, and a database goes on while recovery notes what the last branch has answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Final, TypeVar

from recovery.scan.datasources.asking import Asking
from recovery.scan.datasources.workers import NoAnswer
from txpool.config.secrets import describe_error
from txpool.resources.base import Branch, BranchOutcome, BranchRecord, forget_ends, remembers_end
from txpool.resources.blocking import EndedWhenAwaited
from txpool.resources.deadlines import within_step_timeout
from txpool.resources.recovery_access import BranchRecovery, SharedPhaseTwo, optional
from txpool.tm.commit.progress import PhaseTwoProgress

T = TypeVar("T")
#: Starts a call in a datasource's worker; returns what waits for it.
Start = Callable[[Callable[[], Any]], Callable[[], Any]]
#: How a branch has ended, or the error.
PhaseTwoReply = BranchOutcome | Exception

#: How many answers a worker is asked for at once, at most.
_AT_ONCE: Final = 64
#: So many branches of a datasource are sent while others are still started: it opens its connections meanwhile.
_SENT_EARLY: Final = 256
#: The part of a step's time in which a worker goes on to the next answer: the last one has all the rest.
_SHARE: Final = 0.05


def wait_for(started: Iterable[Callable[[], T]]) -> list[T]:
    """The results of what was started. All are waited for, also after an error; then the first one is raised."""
    results, errors = [], []
    for finish in started:
        try:
            results.append(finish())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


class BranchEnds:
    """Ends the branches of one pass, by datasource, each within its time. Used by one thread."""

    def __init__(self, managers: Mapping[str, BranchRecovery], asking: Asking, progress: PhaseTwoProgress) -> None:
        self._managers = managers
        self._asking = asking
        self._progress = progress
        self._datasources: dict[str, _BranchesOfOne] = {}
        #: How many of the total are not begun yet.
        self._expected = 0

    def expect(self, count: int) -> None:
        """Count so many branches in the total before they are begun."""
        self._expected += count
        self._progress.total += count

    def branch(self, datasource: str, record: BranchRecord) -> AskedBranch:
        """A prepared branch in this datasource."""
        found = self._datasources.get(datasource)
        if found is None:
            manager = self._managers[datasource]
            share = optional(manager, "phase_two")
            phase_two, most = (EndedWhenAwaited(manager), 1) if share is None else (share(), _AT_ONCE)
            found = self._datasources[datasource] = _BranchesOfOne(
                phase_two, partial(self._asking.start, datasource), most
            )
        if self._expected:
            self._expected -= 1
        else:
            self._progress.total += 1
        return AskedBranch(found.phase_two.branch(record), found, self._send, self._progress)

    def close(self) -> None:
        """Close the connections. A branch without an answer is left to the next pass."""
        for name, each in self._datasources.items():
            self._asking.tidy(name, each.phase_two.close)
        self._datasources.clear()

    def _send(self) -> None:
        """Let all databases work before the answer of any is awaited."""
        for each in self._datasources.values():
            each.send()
        for each in self._datasources.values():
            each.wait_until_sent()


class AskedBranch:
    """A branch whose commit and rollback have a time; UNKNOWN if its database has not answered when that is over."""

    __slots__ = ("_branch", "_others", "_progress", "_send", "begin", "record", "wait", "why_unknown")

    def __init__(
        self, branch: Branch, others: _BranchesOfOne, send: Callable[[], None], progress: PhaseTwoProgress
    ) -> None:
        self.record = branch.record
        self._branch = branch
        self._others = others
        self._send = send
        self._progress = progress
        #: What sends its command, and what waits for the answer: called in the datasource's worker.
        self.begin: Callable[[], None] = branch.start_commit
        self.wait: Callable[[], BranchOutcome] = branch.await_commit
        #: Why the last outcome is UNKNOWN, if no answer came in time.
        self.why_unknown = ""

    @property
    def datasource(self) -> str:
        return self._branch.datasource

    def start_commit(self) -> None:
        self.begin, self.wait = self._branch.start_commit, self._branch.await_commit
        self._others.add(self)

    def await_commit(self) -> BranchOutcome:
        return self._outcome()

    def start_rollback(self) -> None:
        self.begin, self.wait = self._branch.start_rollback, self._branch.await_rollback
        self._others.add(self)

    def await_rollback(self) -> BranchOutcome:
        return self._outcome()

    @property
    def remembers_end(self) -> bool:
        return remembers_end(self._branch)

    def forget_end(self) -> None:
        with suppress(NoAnswer):  # the database is asked again, and tells it again
            self._others.start(partial(forget_ends, [self._branch]))()

    def _outcome(self) -> BranchOutcome:
        self._send()
        answer = self._others.answer(self)
        self._progress.one_ended()
        if isinstance(answer, NoAnswer):
            self.why_unknown = describe_error(answer)
            return BranchOutcome.UNKNOWN
        if isinstance(answer, Exception):
            raise answer
        return answer


class _BranchesOfOne:
    """The branches of one datasource. Its worker is asked for the answers of several at once: to ask takes longer than
    a database needs for one. It waits for the next ones while recovery notes these.
    """

    def __init__(self, phase_two: SharedPhaseTwo, start: Start, most: int) -> None:
        self.phase_two = phase_two
        self.start = start
        #: How many answers it is asked for at once, at most.
        self._most = most
        self.unsent: list[AskedBranch] = []
        #: What waits until branches are sent.
        self.sending: list[Callable[[], object]] = []
        #: Those that were sent and have no answer, in this order.
        self._sent: deque[AskedBranch] = deque()
        self._answers: dict[AskedBranch, PhaseTwoReply] = {}
        #: What waits for the answers that the worker was asked for, and where it puts them.
        self._asked: tuple[Callable[[], object], dict[AskedBranch, PhaseTwoReply]] | None = None

    def add(self, branch: AskedBranch) -> None:
        """Send it, now or with others."""
        self.unsent.append(branch)
        if len(self.unsent) >= _SENT_EARLY:
            self.send()

    def send(self) -> None:
        """Start to send what is unsent."""
        if self.unsent:
            unsent, self.unsent = self.unsent, []
            self._sent.extend(unsent)
            self.sending.append(self.start(partial(_send_each, unsent, self._answers)))

    def wait_until_sent(self) -> None:
        """Wait for what was sent; an error is the answers'."""
        sending, self.sending = self.sending, []
        for finish in sending:
            with suppress(Exception):
                finish()

    def answer(self, branch: AskedBranch) -> PhaseTwoReply:
        """The branch's outcome, or its error; NoAnswer if its time is over."""
        while branch not in self._answers and self._sent:
            finish, answers = self._asked or self._ask()
            self._asked = None
            try:
                finish()
            except Exception as error:  # mostly NoAnswer
                answers = {**answers}  # a copy: the worker may still put the last one there
                lacking = (each for each in self._sent if each not in answers)
                answers |= dict.fromkeys(islice(lacking, 1), error)
            self._answers |= answers
            while self._sent and self._sent[0] in self._answers:
                self._sent.popleft()
            if self._sent:
                self._asked = self._ask()
        return self._answers.pop(branch, BranchOutcome.UNKNOWN)

    def _ask(self) -> tuple[Callable[[], object], dict[AskedBranch, PhaseTwoReply]]:
        answers: dict[AskedBranch, PhaseTwoReply] = {}
        return self.start(partial(_await_some, list(islice(self._sent, self._most)), answers)), answers


def _send_each(branches: Iterable[AskedBranch], errors: dict[AskedBranch, PhaseTwoReply]) -> None:
    for branch in branches:
        try:
            branch.begin()
        except Exception as error:
            errors[branch] = error


def _await_some(branches: Sequence[AskedBranch], answers: dict[AskedBranch, PhaseTwoReply]) -> None:
    """Put in `answers` how the first branches have ended: as many as a small part of the step's time allows."""
    left = within_step_timeout()
    until = None if left is None else monotonic() + left * _SHARE
    for branch in branches:
        try:
            answers[branch] = branch.wait()
        except Exception as error:
            if len(branches) == 1:
                raise  # for lack of time, maybe
            answers[branch] = error
        if until is not None and monotonic() > until:
            return
