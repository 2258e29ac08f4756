"""What a launcher's output tells of a rank that a signal has ended: on which host, and by which one."""

from __future__ import annotations

import re
import signal

_AT = re.compile(r"= +(?:RANK \d+ )?PID \d+ RUNNING AT (\S{1,253})")
_CODE = re.compile(r"= +EXIT CODE: (\d{1,5})\b.*")
_INTELS_SIGNAL = re.compile(r"= +KILLED BY SIGNAL: (\d{1,3})\b.*")
_EXIT_STRING = re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: (.+) \(signal (\d{1,3})\)")
_SRUN = re.compile(r"srun: error: (\S{1,253}): tasks? [][\d,-]+: (.{1,100}?)(?: \(core dumped\))?")
_CANCELLED = re.compile(r"slurmstepd: error: \*\*\* .*CANCELLED AT .*")
_OUT_OF_MEMORY = "Out Of Memory"
# Without hydra's exit string a code may be a rank's own: what programs seldom choose is a signal.
_TOLD = {number: (signal.strsignal(number) or "").lower() for number in (4, 6, 7, 8, 9, 11, 15)}
_TOLD[9] = "killed; out of memory?"
_BY_WORD = {signal.strsignal(number): number for number in _TOLD}


class RankEnds:
    """Takes a launcher's lines; the first rank that it names is the cause, the others follow.

    >>> ends = RankEnds()
    >>> ends.feed("srun: error: node2: task 3: Killed")
    >>> ends.said
    'node2: a rank was ended by signal 9 (killed; out of memory?)'
    """

    def __init__(self) -> None:
        """Have heard nothing yet."""
        self._host = self._string = self._by_slurm = ""
        self._code: int | None = None
        self._signal: int | None = None
        self._is_cancelled = False

    def feed(self, line: str) -> None:
        """Take one more line, without what labels its rank."""
        if not line.startswith(("=", "YOUR APPLICATION", "srun: error: ", "slurmstepd: error: ")):
            return
        if found := _AT.fullmatch(line):
            self._host = self._host or found[1]
        elif found := _CODE.fullmatch(line):
            self._code = int(found[1]) if self._code is None else self._code
        elif found := _INTELS_SIGNAL.fullmatch(line):
            self._signal = self._signal or int(found[1])
        elif found := _EXIT_STRING.fullmatch(line):
            self._string, ored = found[1], int(found[2])
            self._signal = self._signal or _pick_signal(self._code, ored)
        elif _CANCELLED.fullmatch(line):  # ends all ranks, of which srun then tells
            self._is_cancelled = True
        elif (found := _SRUN.fullmatch(line)) and not self._is_cancelled:
            self._hear_srun(*found.groups())

    @property
    def said(self) -> str:
        """Say on which host a rank was ended, and by what; "" if the launcher names none."""
        if self._by_slurm or not self._host:
            return self._by_slurm
        number = self._signal
        if number is None and self._string:
            return f"{self._host}: a rank was ended by a signal (the launcher says: {self._string})"
        if number is None and self._code is not None and self._code % 128 in _TOLD and self._code < 256:
            number = self._code % 128
        return _describe(self._host, number) if number is not None else ""

    def _hear_srun(self, host: str, word: str) -> None:
        if word == _OUT_OF_MEMORY:
            said = f"{host}: a rank was ended, being out of memory"
        elif word in _BY_WORD:
            said = _describe(host, _BY_WORD[word])
        else:
            return
        self._by_slurm = self._by_slurm or said


def _describe(host: str, number: int) -> str:
    told = _TOLD.get(number)
    return f"{host}: a rank was ended by signal {number}" + (f" ({told})" if told else "")


def _pick_signal(code: int | None, ored: int) -> int | None:
    """Return the signal that was the cause; None where hydra's two numbers leave it open.

    The code is that of the host's first rank, which may have ended by the SIGKILL that hydra sends to all
    when one has died; the exit string's is those of all ranks there, ored.

    >>> _pick_signal(6, 15), _pick_signal(9, 11), _pick_signal(9, 9), _pick_signal(9, 15)
    (6, 11, 9, None)
    """
    own = (code or 0) % 128
    if own and own != signal.SIGKILL:
        return own
    return ored if ored in (signal.SIGKILL, signal.SIGSEGV) or not ored & signal.SIGKILL else None
