"""MariaDB and MySQL over mysqlclient (the module MySQLdb)."""

from importlib.machinery import PathFinder

import MySQLdb

from txpool.errors import ConfigurationError

if MySQLdb.__name__ != "MySQLdb":  # pymysql.install_as_MySQLdb(), as for Django
    if PathFinder.find_spec("MySQLdb") is None:
        raise ModuleNotFoundError("No module named 'MySQLdb'", name="MySQLdb")
    raise ConfigurationError(
        f"driver = mysqlclient needs MySQLdb, and in this process {MySQLdb.__name__} has that name: leave out "
        "install_as_MySQLdb(), or write driver = pymysql"
    )
