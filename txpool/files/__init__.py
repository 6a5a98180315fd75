"""Folders of files that appear when their transaction commits."""

from txpool.files.folder import folder
from txpool.resources.files.work import StagedFolder

__all__ = ["StagedFolder", "folder"]
