"""Credentials that a function supplies, which is called before each physical connection is opened.

The function is given in code, or named by a file: `package.module:function`. Nothing that it returns is kept but the
last passwords, so that no error shows them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context
from importlib import import_module
from typing import Any

from txpool.config.secrets import Secret, escaped, hide_in
from txpool.errors import ConfigurationError, Error, OperationalError, described

#: Called without arguments; returns a password, or a user and a password. Either may be a Secret.
CredentialsFunction = Callable[[], Any]
_KEPT = 16
#: Stands for a function that the module does not have.
_ABSENT = object()


class Credentials:
    """The source of one datasource's users and passwords. Thread-safe, if the function is."""

    def __init__(self, datasource: str, source: CredentialsFunction | str) -> None:
        self._datasource = datasource
        self._function = None if isinstance(source, str) else source
        #: The function's name in a file, as `package.module:function`; empty if it was given in code.
        self.name = source if isinstance(source, str) else ""
        self._issued: deque[Secret] = deque(maxlen=_KEPT)

    @property
    def issued(self) -> tuple[Secret, ...]:
        """The passwords of late, for `redact`."""
        return tuple(self._issued)

    def issue(self) -> tuple[str | None, Secret]:
        """A user, None for the configured one, and a password. Calls the function: outside any transaction.

        Errors name the datasource, and show nothing that the function has returned.
        """
        function = self._loaded()
        try:
            found = Context().run(function)
        except Error:
            raise
        except Exception as error:
            hide_in(error, self.issued)
            raise OperationalError(f"{self._whose} failed with {described(error)}") from error
        user, password = found if isinstance(found, tuple) and len(found) == 2 else (None, found)
        if not isinstance(password, str | Secret) or not isinstance(user, str | None):
            raise ConfigurationError(
                f"{self._whose} has returned {_kind_of(found)}: return a password, or a user and a password"
            )
        secret = password if isinstance(password, Secret) else Secret(escaped(password))
        if secret not in self.issued:
            self._issued.append(secret)
        return user, secret

    @property
    def _whose(self) -> str:
        return f"datasource {self._datasource}: credentials{f' = {self.name}' if self.name else ''}"

    def _loaded(self) -> CredentialsFunction:
        if self._function is None:
            module, _, function = self.name.partition(":")
            try:
                found = getattr(import_module(module), function, _ABSENT)
            except Exception as error:
                hide_in(error)
                # Not the name itself: whoever has written user:password there has given the same form.
                problem = f"cannot be loaded ({described(error)}): name package.module:function"
                raise ConfigurationError(f"datasource {self._datasource}: credentials {problem}") from error
            if found is _ABSENT:
                problem = "cannot be loaded: the module has no such function. Name package.module:function"
                raise ConfigurationError(f"datasource {self._datasource}: credentials {problem}")
            if not callable(found):
                raise ConfigurationError(f"{self._whose} is {_kind_of(found)}, and no function")
            self._function = found
        return self._function

    def __repr__(self) -> str:
        return f"<Credentials of {self._datasource}: a function {'named by a file' if self.name else 'given in code'}>"


def _kind_of(value: object) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")
