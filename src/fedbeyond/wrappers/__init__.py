"""Wrappers: functions that take a method and return a changed method, one file each."""

from .._factory import places

PLACES = places("wrappers.*", "ga rc am sha mixstyle augmix dp")
