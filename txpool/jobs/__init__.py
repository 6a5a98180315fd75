"""Spark's own jobs within a transaction: tasks are told of it, and nothing of theirs goes past it unseen.

It works in every process that has loaded Spark, and loads nothing of Spark itself.
"""
