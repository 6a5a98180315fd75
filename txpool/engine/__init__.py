"""SQLAlchemy over a datasource: an Engine that takes its connections from the datasource's pool."""

from txpool.engine.engine import create_async_engine, create_engine

__all__ = ["create_async_engine", "create_engine"]
