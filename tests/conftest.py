"""Lies here so that pytest puts tests/ on the import path: every test file can import helpers.py."""

import signal

# A shell lets what it runs in the background ignore Ctrl-C; here tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
