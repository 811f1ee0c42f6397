"""Tests that do not end, among some that do: for those of benchmarks/gpu_tests.py. pytest does not look in here."""

import ctypes
import threading

import pytest


def test_that_passes_before(): ...


def test_that_waits_in_python():
    threading.Event().wait(600)


def test_that_waits_in_a_call_of_c():
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock: no exception can reach it


def test_that_fails():
    assert 1 + 1 == 3


@pytest.mark.skip(reason="has no card")
def test_that_is_skipped(): ...


def test_that_passes_behind(): ...
