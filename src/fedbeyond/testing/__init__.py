"""Tests for methods, also for users' own: the laws that every method obeys, and toy sites to check them on."""

from .compare import LawBroken
from .laws import check_method

__all__ = ["LawBroken", "check_method"]
