"""Matching of columns, and conversion of values between Arrow and PostgreSQL."""
