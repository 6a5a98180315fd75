"""The tests' PostgreSQL server in a container, if a Docker engine runs here and TXPOOL_TEST_DOCKER=1 asks for that."""

from __future__ import annotations

import os
import secrets
from typing import Any

from txpool.demo.server import EmbeddedPostgres
from txpool.errors import ConfigurationError


def asked_for() -> bool:
    """Whether the server is to be in a container."""
    return os.environ.get("TXPOOL_TEST_DOCKER") == "1"


def postgres(databases: tuple[str, ...] = ("one", "two")) -> EmbeddedPostgres:
    """A server that is not started yet: in a container if that is asked for, else out of the wheel."""
    return ContainerPostgres(databases=databases) if asked_for() else EmbeddedPostgres(databases=databases)


class ContainerPostgres(EmbeddedPostgres):
    """The same server out of a container image. ConfigurationError as it starts if testcontainers is missing."""

    _container: Any = None

    @property
    def running(self) -> bool:
        return self._container is not None and self._container.get_wrapped_container().status == "running"

    def start(self) -> None:
        try:
            from testcontainers.core.container import DockerContainer
        except ImportError:
            raise ConfigurationError(
                "TXPOOL_TEST_DOCKER=1 asks for a server in a container: pip install 'txpool[testing]' testcontainers"
            ) from None

        first = self._container is None
        if first:
            self._container = DockerContainer("postgres:18").with_env("POSTGRES_USER", self.user)
            self._container.with_env("POSTGRES_PASSWORD", self.password).with_env("POSTGRES_DB", "postgres")
            settings = {"max_prepared_transactions": "64"} | self.settings
            self._container.with_command("postgres " + " ".join(f"-c {key}={settings[key]}" for key in settings))
            self.port = 20_000 + secrets.randbelow(12_000)
            self._container.with_bind_ports(5432, self.port).start()
        else:
            self._container.get_wrapped_container().start()
        # While the image makes its cluster, the server is there but listens on no address.
        self._container.exec(["sh", "-c", "until pg_isready -q -h 127.0.0.1; do sleep 0.1; done"])
        if first:
            self._create_databases()

    def stop(self, mode: str = "fast") -> None:
        if self.running:
            container = self._container.get_wrapped_container()
            container.kill({"fast": "SIGINT", "immediate": "SIGQUIT"}[mode])
            container.wait()
            container.reload()

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()
