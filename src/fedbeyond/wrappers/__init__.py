"""Wrappers: functions that take a method and return a changed method, one file each."""
