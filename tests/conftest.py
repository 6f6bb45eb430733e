"""Fixtures shared by all tests."""

from __future__ import annotations
