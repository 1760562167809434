"""``numtrans gradcheck``."""

import time

from numtrans.cli.arguments import nonnegative
from numtrans.errors import ConfigError


def add(commands):
    """Add the command to the parser."""
    check = commands.add_parser(
        "gradcheck", help="prove the backward passes against numeric differences",
        description="Check the gradient of each component in float64 with a random cotangent. Exit status 1 if one "
        "fails.",
    )  # fmt: skip
    check.add_argument("components", nargs="*", metavar="COMPONENT", help="names or parts of names, such as LayerNorm")
    check.add_argument("--all", action="store_true", help="every component and model")
    check.add_argument("--list", action="store_true", help="print the names and end")
    check.add_argument("--details", action="store_true", help="one line for each tensor")
    check.add_argument("--seed", type=nonnegative, default=0, help="seed of all random numbers (default %(default)s)")
    check.set_defaults(run=run_gradcheck)


def run_gradcheck(arguments):
    """``numtrans gradcheck``"""
    from numtrans.components import components

    everything = components(arguments.seed)
    if arguments.list:
        print("\n".join(component.name for component in everything))
        return 0
    if not arguments.components and not arguments.all:
        raise ConfigError("gradcheck: name components, or ask for --all; --list prints the names")
    chosen = everything
    if not arguments.all:
        names = [name.lower() for name in arguments.components]
        chosen = [c for c in everything if any(name in c.name.lower() for name in names)]
        unknown = [name for name in arguments.components if not any(name.lower() in c.name.lower() for c in everything)]
        if unknown:
            raise ConfigError(f"gradcheck: no component is called {', '.join(unknown)}; --list prints the names")
    return 0 if check_components(chosen, seed=arguments.seed, details=arguments.details) else 1


def check_components(chosen, *, seed=0, details=False):
    """Print a table of gradient checks; True if all pass."""
    from numtrans.gradcheck import gradcheck

    start, failed = time.perf_counter(), []
    print(f"   {'component':34s} tensors numbers    error  complex  float32  verdict")
    for component in chosen:
        report = gradcheck(component.module, *component.inputs, seed=seed, **component.kwargs)
        reports = [report]
        if component.analytic:
            reports.append(
                gradcheck(component.module, *component.inputs, method="complex", seed=seed, **component.kwargs)
            )
        errors = [f"{max((row.error for row in r.rows), default=0):8.0e}" for r in reports]
        single = max((row.float32_error for row in report.rows), default=0)
        passed = all(reports)
        print(
            f"   {component.name:34s} {len(report.rows):7d} {sum(row.checked for row in report.rows):7d} {errors[0]} "
            f"{errors[1] if len(errors) > 1 else '       -'} {single:8.0e}  {'pass' if passed else 'FAIL'}",
            flush=True,
        )
        if not passed:
            failed.append(component.name)
        for r in reports:
            if details or not r:
                print("\n" + "\n".join("      " + line for line in str(r).splitlines()) + "\n")
    took = time.perf_counter() - start
    if failed:
        print(f"\n   {len(failed)} of {len(chosen)} failed: {', '.join(failed)} ({took:.0f} s)")
    else:
        print(f"\n   all {len(chosen)} pass: every gradient agrees with the numeric one to 1e-7 ({took:.0f} s)")
    return not failed
