"""``numtrans course``."""


def add(commands):
    """Add the commands to the parser."""
    course = commands.add_parser("course", help="make the student's copy of an assignment").add_subparsers(
        dest="course", required=True, metavar="COMMAND"
    )
    build = course.add_parser(
        "build", help="take the solutions and the hidden tests out of a teacher's notebook",
        description="Write the student's copy of an assignment: each solution is replaced by what is to be written, "
        "hidden tests and outputs are removed. A file that may hold a student's work is not touched.",
    )  # fmt: skip
    build.add_argument("notebook", metavar="FILE.ipynb", help="the teacher's notebook, such as ps5-layernorm.ipynb")
    build.add_argument("--out", required=True, metavar="DIR", help="folder of the copy, which has the same name")
    build.set_defaults(run=run_course_build)


def run_course_build(arguments):
    """``numtrans course build``"""
    from numtrans.course import build

    print(f"written to {build(arguments.notebook, arguments.out)}")
