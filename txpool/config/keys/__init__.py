"""The keys of configuration files: three tables, for datasources, for the coordinator and for recovery.

Reading the values, naming the nearest key for an unknown one and the configuration reference all use these tables.
"""

from txpool.config.keys.coordinator import COORDINATOR_KEYS, RECOVERY_KEYS
from txpool.config.keys.datasource import BROKERS, DATASOURCE_KEYS, MODES
from txpool.config.keys.key import Key, reference

__all__ = ["BROKERS", "COORDINATOR_KEYS", "DATASOURCE_KEYS", "MODES", "RECOVERY_KEYS", "WHOSE", "Key", "reference"]

#: Every key, and whose file it belongs in.
WHOSE = {key.name: "the coordinator's file, such as conf/txpool.properties" for key in COORDINATOR_KEYS}
WHOSE |= {key.name: "recovery's file, such as conf/recovery.properties" for key in RECOVERY_KEYS}
WHOSE |= {key.name: "a datasource's file, such as conf/orders.properties" for key in DATASOURCE_KEYS}
