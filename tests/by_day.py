"""Whose turn it is: what is heavy is sampled by day (`DATE=YYYY-MM-DD` plays one again, default today in UTC); `NIGHTLY=1` plays all."""

import datetime
import os

DATE = os.environ.get("DATE") or datetime.datetime.now(datetime.timezone.utc).date().isoformat()
NIGHTLY = os.environ.get("NIGHTLY") == "1"


def turn(parts, date, nightly=False):
    """The parts whose turn it is on a date: one a day, in their order; by night all.

    >>> [turn("abc", date) for date in ("2026-11-24", "2026-11-25", "2026-11-26", "2026-11-27")]
    [['a'], ['b'], ['c'], ['a']]
    >>> turn("abc", "2026-11-24", nightly=True)
    ['a', 'b', 'c']
    """
    day = (datetime.date.fromisoformat(date) - datetime.date(1970, 1, 1)).days
    return [part for i, part in enumerate(parts) if nightly or i == day % len(parts)]
