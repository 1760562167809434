"""Assignments: the student's copy of a teacher's notebook, and checks that say in plain words what is wrong."""

from numtrans.course.build import build, student_copy
from numtrans.course.checks import Check, CheckFailed

__all__ = ["Check", "CheckFailed", "build", "student_copy"]
