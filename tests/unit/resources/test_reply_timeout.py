"""An answer that does not come in time is one class of ours, and an error of each driver's."""

from __future__ import annotations

import pickle

import psycopg
import pymysql
import pytest

import txpool
from txpool.errors import translate
from txpool.resources.deadlines import ReplyTimeout, reply_timeout


@pytest.mark.parametrize("of_driver", [psycopg.OperationalError, pymysql.OperationalError])
def test_it_is_the_drivers_and_ours_and_can_be_pickled(of_driver: type[Exception]) -> None:
    error = reply_timeout(of_driver)("no answer")
    error.add_note("of t")
    translate(error)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(each, ReplyTimeout)
        assert isinstance(each, of_driver)
        assert isinstance(each, txpool.OperationalError)
        assert (str(each), each.__notes__, type(each).__name__) == ("no answer", ["of t"], "ReplyTimeout")
