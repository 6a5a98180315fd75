"""Matching of columns, conversion of values between Arrow and PostgreSQL, and quoted names."""
