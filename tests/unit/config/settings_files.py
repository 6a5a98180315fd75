"""Files of settings in the working directory, and what is said of wrong ones."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from txpool.config.settings import DataSourceSettings
from txpool.errors import ConfigurationError

PASSWORD = "hunter2"
ORDERS = "driver = psycopg\nurl = postgresql://app@localhost/orders\n"
LEDGER = "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n"


def write(path: str, text: str, mode: int = 0o600) -> Path:
    file = Path(path)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def refused(text: str, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        DataSourceSettings.load(write("conf/orders.properties", text), **options)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)
