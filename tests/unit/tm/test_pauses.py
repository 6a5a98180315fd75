"""The pause before another attempt."""

from __future__ import annotations

import pytest

from txpool.tm.demarcation.retry import FIRST_PAUSE, LONGEST_PAUSE, doubled


@pytest.mark.parametrize(("times", "seconds"), [(0, 0.02), (1, 0.04), (5, 0.64), (6, 1.0), (2000, 1.0)])
def test_it_is_doubled_up_to_a_bound_however_often(times: int, seconds: float) -> None:
    """Two to the power of 1,024 is no float."""
    assert doubled(FIRST_PAUSE, times, LONGEST_PAUSE) == pytest.approx(seconds)
