"""The name of what every driver has, and what each has otherwise."""

from __future__ import annotations

from typing import Any, TypeAlias

#: A connection of a driver's own. Only its database's folder, which names its class there, looks into it: all else
#: hands it on.
RawConnection: TypeAlias = Any
