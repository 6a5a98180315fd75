"""The cases of the conformance kit: what each promise is, and how it is tried."""
