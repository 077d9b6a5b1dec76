"""Instruments that any chapter can use; each file has one job and reads top to bottom."""
