"""The documents' server, for pages that are tried as a new user tries them."""

from tests.docs.conftest import docs_server, machine

__all__ = ["docs_server", "machine"]
