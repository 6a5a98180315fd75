"""A judge of its own: from databases and histories alone it decides whether transactions were atomic and consistent.

It imports nothing of txpool, and nothing of its tests. `history.py` has what callers did and were told, `atomicity.py`
judges over all databases, `consistency.py` within each. `python -m tests.judge HISTORY LISTS [LEVEL]` judges two files.
"""
