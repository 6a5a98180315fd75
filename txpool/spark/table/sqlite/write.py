"""One write_table() into SQLite within a transaction: by the driver, since a file has one writer at a time."""

from __future__ import annotations

from contextlib import closing
from contextvars import Context, copy_context

from txpool.datasource import DataSource
from txpool.spark.table.report import WriteReport
from txpool.spark.table.sqlite import target as sqlite
from txpool.spark.table.sqlite.collecting import STAGING, collected
from txpool.spark.table.staging import StagingMerge
from txpool.spark.table.table_write import TableWrite
from txpool.spark.table.target import require_unique
from txpool.tm.transaction import Transaction


class DriverWrite(TableWrite):
    """The driver writes the rows, once the job has ended. For a file that tasks cannot write to."""

    source: DataSource

    def run(self, ambient: Transaction) -> WriteReport:
        """Write as a part of the transaction, unless an earlier run has."""
        new = sqlite.definitions(self.df.schema.fields) if self.create else None
        # Reads outside of the transaction, unless it works in the file: then it may hold the lock, which in some
        # journal modes keeps other connections from reading.
        read = (copy_context() if ambient.works_in(self.source.name) else Context()).run
        target = read(sqlite.read_target, self.source, self.table, new, self.keys)
        report, record = self._begin_report(ambient, target, self.source)
        if record is not None and (earlier := read(record.earlier_run)) is not None:
            return self._skipped(report, record, earlier)
        if not self._is_wanted(target):
            return report
        df, layout = sqlite.match(self.df, target.columns, target.name)
        require_unique(target, self.keys, layout.names)
        merge = StagingMerge(ambient.gtrid, target, layout, self.mode, self.keys, STAGING, new or ())
        ambient.enlist_datasource(self.source)  # raises before the job rather than after it; takes no lock yet
        with (
            collected(self._coalesced(df), layout.encodings, ambient, report) as rows,
            closing(self.source.connect()) as connection,
        ):
            if record is not None and (earlier := record.claim(connection)) is not None:
                return self._skipped(report, record, earlier)
            report = rows.insert(connection.cursor(), merge, self.progress)
            if record is not None:
                record.finish(connection, report.partitions, report.rows)
        return report
