"""Compile, prove and time configs inside worker and helper processes."""
