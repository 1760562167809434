"""Small random configurations, drawn by hypothesis: the same ones in every run."""

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SETTINGS = dict(
    derandomize=True, deadline=None, database=None, print_blob=False,
    phases=(Phase.generate, Phase.shrink), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
MASKS = st.sampled_from(["none", "padding", "any"])


def configurations(**fields):
    """Dicts of the `fields`, which are strategies, with batch, tokens, heads and a seed of the weights."""
    common = dict(B=st.integers(1, 3), T=st.integers(1, 9), heads=st.integers(1, 4), seed=st.integers(0, 10**6))
    return st.fixed_dictionaries(common | fields)


def compare_each(check, count, strategy):
    """Call `check` on `count` configurations of `strategy`, all different; hypothesis shrinks one that fails."""
    seen = set()

    @settings(max_examples=count, **SETTINGS)
    @given(strategy)
    def run(configuration):
        seen.add(repr(configuration))
        check(configuration)

    run()
    assert len(seen) == count
