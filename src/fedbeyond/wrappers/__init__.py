"""Wrappers: functions from a method to a method, one file each."""
