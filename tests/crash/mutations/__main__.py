"""`python -m tests.crash.mutations RULE`: a rule's test, over the real code without the rule."""

from __future__ import annotations

import sys

from tests.crash.mutations import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
