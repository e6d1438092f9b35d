"""Which of the counters in a log is the training's.

A log may show several: the training bar, the evaluation's, a download's, micro batches, epochs, engines that
each count for themselves. Records of one shape make a series. Strong ones, with a name and metrics beside the
number, are taken at their word; the others are judged by how they move beside them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from exporter.logs import evaluations
from exporter.logs.reading import Form, Reading

_MOST = 256  # series of one log that are remembered
_OTHER_UNIT = 8  # times the advance of the strong series beyond which a bar counts something else
_YOUNG = 64  # records of a log in which every one may change what counts
_NOW_AND_THEN = 16
_RECURRED = 3  # records after which a weak series may count
_BARS = (Form.BAR, Form.OPEN_BAR)
_UNSETTLED = (*_BARS, Form.EPOCH, Form.ROW, Form.OTHER)  # others may come that count instead


@dataclass(slots=True)
class Series:
    """The records of one shape, and how their number moved."""

    key: str
    form: Form
    strong: bool
    named: bool
    total: int | None
    number: int = 0  # in order of appearance
    count: int = 0
    first: int | None = None
    last: int | None = None
    first_record: int = 0
    last_record: int = 0
    first_number_record: int = 0
    last_number_record: int = 0
    epoch: float | None = None
    epochs: int | None = None
    from_zero: bool = False  # it was seen at 0 as a record of its own
    reached: bool = False  # it was seen at its total
    advances: int = 0
    resets: int = 0
    stride: int = 0  # the newest advance
    outside_evaluation: int = 0
    closed: bool = False  # a bar ended by a newline
    measured: bool = False  # a bar that showed metrics
    epochs_of_bar: int = 0  # its records that showed the epoch that a bar shows: it counts epochs
    redrawn: bool = False  # it was drawn with carriage returns before
    aside: int | None = None  # its resets when it was last found to have run between two records of training
    # Beside the strong series: their records while this bar was under way, and while it was not.
    during: int = 0
    beside: int = 0
    cycles: int = 0
    at_reference: int = 0  # where this bar stood at the last of them
    finer: int = 0  # times it had gone much further than they: it counts samples or prompts
    alike: int = 0
    reference_advance: int = 0  # what the strong series advanced by at the last record beside this bar
    # Beside other bars: key of an outer bar, and where that stood when this one's cycle began.
    marks: dict[str, int] = field(default_factory=dict)
    inside: dict[str, int] = field(default_factory=dict)  # whole cycles while the outer stood still
    every: dict[str, int] = field(
        default_factory=dict
    )  # of those, with the outer one further than the time before

    @property
    def under_way(self) -> bool:
        return self.last is not None and self.total is not None and 0 < self.last < self.total

    @property
    def evaluates(self) -> bool:
        """Whether it is an evaluation that prints as training does. One that goes on without training is none."""
        return self.aside is not None and self.resets - self.aside <= 1

    def moves(self, reading: Reading) -> bool:
        """Whether the reading shows progress over what was seen: another number, or another epoch."""
        if reading.iteration is None:
            return True
        return reading.iteration != self.last or (reading.epoch is not None and reading.epoch != self.epoch)


class Chooser:
    """Keeps the series of one log and says which of them count."""

    def __init__(self) -> None:
        self._series: OrderedDict[str, Series] = OrderedDict()
        self._strong_last: int | None = None
        self._strong_records = 0
        self._started = 0
        self._stale = True
        self._accepted: frozenset[str] = frozenset()
        self._seen = 0

    @property
    def series(self) -> tuple[Series, ...]:
        return tuple(self._series.values())

    def get(self, key: str) -> Series | None:
        return self._series.get(key)

    def observe(self, reading: Reading, record: int, *, evaluating: bool, closed: bool) -> Series:
        """Take a reading that may be training's into its series."""
        one = self._series.get(reading.series)
        self._age()
        if one is None:
            one = self._series[reading.series] = Series(
                reading.series, reading.form, reading.strong, reading.named, reading.total, self._started
            )
            self._started += 1
            self._stale = True
            if len(self._series) > _MOST:
                self._series.popitem(last=False)
        else:
            self._series.move_to_end(reading.series)
        one.closed = closed and not reading.tail  # a newline behind what another wrote is not the bar's
        one.redrawn |= not closed
        one.measured |= reading.measured
        if not reading.unstarted:
            self._count(one, reading, record, evaluating)
        if reading.iteration is not None:
            self._advance(one, reading.iteration)
            one.epoch = reading.epoch if reading.epoch is not None else one.epoch
            one.epochs = reading.epochs or one.epochs
        return one

    def _count(self, one: Series, reading: Reading, record: int, evaluating: bool) -> None:
        if not one.count:
            one.first_record = record
        if one.first is None:
            one.first = reading.iteration
            one.first_number_record = record
        one.from_zero |= reading.iteration == 0
        one.count += 1
        one.last_record = record
        if reading.iteration is not None:
            one.last_number_record = record
        one.outside_evaluation += not evaluating
        if one.strong and one.form in (Form.KEYED, Form.METRICS):
            self._refer(one, reading.iteration, 1)

    def _mark_bars(self, one: Series) -> None:
        """A bar begins: how do the others stand?"""
        for other in self._series.values():
            if other is not one and other.form in (*_BARS, Form.EPOCH) and other.last is not None:
                before = one.marks.get(other.key)
                if before is not None and other.last == before + 1:
                    one.every[other.key] = one.every.get(other.key, 0) + 1
                one.marks[other.key] = other.last

    def _finish_cycle(self, one: Series) -> None:
        one.cycles += 1
        self._stale = True
        for key, mark in one.marks.items():
            outer = self._series.get(key)
            if outer is not None and outer.last == mark and (outer.total is None or mark < outer.total):
                one.inside[key] = one.inside.get(key, 0) + 1

    def skim(self, one: Series, numbers: Sequence[int], record: int) -> None:
        """Many records of a known series at once; `record` is the last one's number."""
        self._age()
        turns = numbers[-1] == one.total or numbers[0] < (one.last or 0) or not _grows(numbers)
        if one.form in _BARS and (turns or one.last is None):
            for number in numbers:
                self._advance(one, number)
        elif one.last is None or numbers[-1] > one.last:
            one.advances += 1
            one.stride = numbers[-1] - (numbers[-2] if len(numbers) > 1 else one.last or 0) or one.stride
        one.last = numbers[-1]
        one.count += len(numbers)
        one.last_record = one.last_number_record = record
        one.outside_evaluation += len(numbers)
        if one.strong and one.form is Form.KEYED:
            self._refer(one, one.last, len(numbers))

    def _age(self) -> None:
        """Judge again at the next question: every time in the beginning, then now and then."""
        self._seen += 1
        self._stale |= self._seen < _YOUNG or not self._seen % _NOW_AND_THEN

    def _advance(self, one: Series, number: int) -> None:
        """The number that a record of the series shows."""
        if one.form in _BARS and (one.last is None or number < one.last):
            self._mark_bars(one)
        if one.last is not None and number > one.last:
            one.advances += 1
            one.stride = number - one.last
        elif one.last is not None and number < one.last:
            one.resets += 1
        one.last = number
        if one.total is not None and number == one.total:
            one.reached = True
            if one.form in _BARS:
                self._finish_cycle(one)

    def _refer(self, one: Series, number: int | None, records: int) -> None:
        """Records of a strong series: how do the bars stand beside them?"""
        self._strong_records += records
        advance = 0
        if number is not None:
            advance = abs(number - (self._strong_last or 0))
            self._strong_last = number
        for bar in self._series.values():
            if bar.form not in _BARS:
                continue
            if one.total is not None and (one.total, number) == (bar.epochs, bar.epoch):
                one.epochs_of_bar += 1
            if bar.under_way:
                bar.during += records
                gone = (bar.last or 0) - bar.at_reference
                if advance and gone > 0:
                    bar.finer += gone > _OTHER_UNIT * advance
                    bar.alike += gone <= _OTHER_UNIT * advance
                bar.at_reference = bar.last or 0
            else:
                bar.beside += records
                bar.reference_advance = advance or bar.reference_advance

    def settled(self) -> frozenset[str]:
        """Keys of the series that count whatever moves beside them: named counters, or a bar that is alone."""
        bars = sum(one.form in _BARS for one in self._series.values())
        alone = bars == 1 and not self._strong_records
        return frozenset(key for key in self.accepted() if alone or self._series[key].form not in _UNSETTLED)

    def accepted(self) -> frozenset[str]:
        """Keys of the series that count as training's, by all that was seen so far."""
        if self._stale:
            self._accepted = frozenset(self._choose())
            self._stale = False
        return self._accepted

    def _choose(self) -> set[str]:
        keyed = {
            one.key
            for one in self._series.values()
            if one.form in (Form.KEYED, Form.METRICS) and one.strong and one.count > 2 * one.epochs_of_bar
        }
        evaluations.find_short_runs([self._series[key] for key in keyed])
        keyed = {key for key in keyed if not self._series[key].evaluates}
        elsewhere = {key for key in keyed if self._series[key].outside_evaluation}
        keyed = elsewhere or keyed
        numbered = any(self._series[key].form is Form.KEYED for key in keyed)
        if not numbered:
            weak = [one for one in self._series.values() if one.form is Form.KEYED and _recurs(one)]
            keyed |= {one.key for one in weak if not one.strong}
        bars = self._bars(bool(keyed))
        if bars and not keyed:
            bars -= self._before_epochs(bars)
        found = keyed | bars
        if not found:
            found = {one.key for one in self._series.values() if one.form is Form.OPEN_BAR and one.count}
        for form in (Form.ROW, Form.BARE, Form.OTHER):
            found = found or self._most(form)
        if not found:
            found = {
                one.key
                for one in self._series.values()
                if one.form is Form.EPOCH and one.count and (one.strong or _recurs(one))
            }
        return found

    def _most(self, form: Form) -> set[str]:
        """Of the series of a form that moved as counters do, the one with the most records; all of tables."""
        ones = [one for one in self._series.values() if one.form is form and (one.strong or _recurs(one))]
        ones = [one for one in ones if one.count]
        if form is Form.ROW:
            return {one.key for one in ones}
        return {max(ones, key=lambda one: one.count).key} if ones else set()

    def _bars(self, beside_keyed: bool) -> set[str]:
        candidates = [one for one in self._series.values() if one.form is Form.BAR and one.count]
        if beside_keyed:
            candidates = [one for one in candidates if self._agrees(one)]
        # One that is over with its first record does not move.
        candidates = evaluations.left_out([one for one in candidates if one.total != 1] or candidates)
        named = [one for one in candidates if one.named]
        if named:
            totals = {one.total for one in named}
            candidates = [one for one in candidates if one.named or one.total in totals]
        keys = {one.key: one for one in candidates}
        rejected: set[str] = set()
        for inner in candidates:
            for key, cycles in inner.inside.items():
                outer = keys.get(key)
                if outer is None:
                    continue
                every = inner.every.get(key, 0)
                mark = inner.marks.get(key, 0)
                if (cycles > 1 and every >= (cycles - 1) * 0.6) or (cycles == 1 and mark <= 0):
                    rejected.add(key)  # the outer one counts epochs
                elif not inner.named or (outer.last or 0) > mark:
                    rejected.add(inner.key)  # an evaluation within training
        rest = [one for one in candidates if one.key not in rejected and not one.named]
        rejected |= evaluations.taking_turns(rest)
        return set(keys) - rejected

    def _before_epochs(self, bars: set[str]) -> set[str]:
        """Bars without a word of training that were over before epochs began that are counted without bars."""
        epochs = [
            one for one in self._series.values() if one.form is Form.EPOCH and one.strong and one.advances > 1
        ]
        began = min((one.first_record for one in epochs), default=0)
        ones = [self._series[key] for key in bars]
        return {one.key for one in ones if one.last_record < began and not (one.named or one.measured)}

    def _agrees(self, bar: Series) -> bool:
        """Whether a bar moves along with the strong series, rather than between their records."""
        seen = bar.during + bar.beside
        if bar.finer > bar.alike or not (bar.advances or bar.named or bar.measured):
            return False  # of other things than the strong series, or drawn once it was done alone
        if bar.during:
            return bar.during * 4 >= seen or bar.named
        outside = self._strong_records
        if not outside:
            return True
        if bar.cycles and outside <= bar.cycles + 1:
            # One record a cycle: an epoch's summary, or an iteration made of many small ones.
            return not bar.reference_advance or bar.reference_advance * 2 >= (bar.total or 0)
        return not bar.cycles and bar.named and not bar.beside


def _grows(numbers: Sequence[int]) -> bool:
    return isinstance(numbers, range) or numbers == sorted(numbers)


def _recurs(one: Series) -> bool:
    """Whether a weak series moved as a counter does."""
    return one.count >= _RECURRED and one.advances >= 2 and one.advances >= 2 * one.resets
