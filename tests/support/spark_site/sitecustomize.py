"""What Python begins with in every process of a Spark of the tests, since this folder is on its PYTHONPATH.

The process leaves out the rule that the test of a mutation leaves out. A daemon of Python workers imports what they
need before it forks them: a worker ends with its task where that fails, and the next one would import all of it again,
for a second of CPU.
"""

from __future__ import annotations

import os
import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"] and sys.orig_argv[3] != "pyspark.sql.worker.lookup_data_sources":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no thread is there when a worker is forked
    import pandas
    import pyarrow
    import pyspark.worker

    import txpool.spark

if "TXPOOL_TEST_LEAVES_OUT" in os.environ:
    from tests.crash import mutations

    mutations.leave_out(os.environ["TXPOOL_TEST_LEAVES_OUT"])
