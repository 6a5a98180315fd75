"""Who delivers the messages of an outbox to a broker that cannot take part: at least once, each with its id."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from txpool.errors import ConfigurationError, described

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.outbox.relays.broker import BrokerDelivery

#: By the value of `outbox.deliver`.
_DELIVERIES = {"kafka": "KafkaDelivery", "rabbitmq": "RabbitMQDelivery", "nats": "NatsDelivery", "jms": "JmsDelivery"}


def delivery_to(name: str, settings: DataSourceSettings) -> BrokerDelivery:
    """What delivers to the broker that `outbox.deliver` names. ConfigurationError if its client or a key is missing."""
    try:
        found: type[BrokerDelivery] = getattr(import_module(f"{__name__}.{name}"), _DELIVERIES[name])
    except ImportError as error:
        raise ConfigurationError(
            f"datasource {settings.name}: outbox.deliver = {name} needs its client, which is not installed: "
            f"pip install 'txpool[{name}]' ({described(error)})"
        ) from error
    return found(settings)
